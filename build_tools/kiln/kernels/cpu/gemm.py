"""The packed matmul behind convolutions and dense layers: one register tile, many uses.

A tile is MR rows (output pixels, or rows of the left matrix) by NR columns (output channels); NR is NV
vectors. Weights are packed offline as [column panel][k][NR], so that the inner loop reads them in order:

    for k: for row in MR: for v in NV: acc[row][v] += broadcast(x[row][k]) * w[panel][k][v]

With MR * NV accumulators in registers and one broadcast per row this is bound by the multiply-add units
(Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008). The last panel and the
last tile may be narrower; panels are padded with zeros offline, and only real columns are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from kiln.config.sizes import ceil_div
from kiln.kernels.cpu.gemm_prefetch import LINE, PanelPrefetch, prefetch
from kiln.kernels.cpu.gemm_tile import Loop, Tile
from kiln.tir.builder import (
    Expr,
    bind,
    chunks,
    divide,
    int64,
    load,
    registers,
    serial,
    store,
    vector,
)
from kiln.tir.vector_expr import ramp

# finish(row, column, sum) stores one element of the output.
Finish = Callable[[Expr, Expr, Expr], None]


def _add_pairs(sums: Sequence[Any], last: int, lanes: int) -> list[tuple[Any, int]]:
    """Add adjacent lanes of sums[row][last]; return the buffer and first lane of each row's results.

    Two rows are added at a time: for a single row LLVM selects vhaddps, which can address only 16 registers,
    and spills others in the preceding loop.
    """
    place, ends = [int64(last), ramp(int64(0), lanes)], []
    for row in range(0, len(sums), 2):
        two = [load(sums[min(index, len(sums) - 1)], place) for index in (row, row + 1)]
        even, odd = (
            tirx.Shuffle(two, [tirx.IntImm("int32", lane) for lane in range(first, 2 * lanes, 2)])
            for first in range(2)
        )
        store(sums[row], place, even + odd)
        ends += [(sums[row], 0), (sums[row], lanes // 2)]
    return ends[: len(sums)]


def product(
    tile: Tile,
    rows: Sequence[Expr],
    first_column: Expr,
    columns: int,
    x: Any,
    bases: Sequence[Expr],
    weights: Any,
    panel: Expr,
    loops: Sequence[Loop],
    accumulator: str,
    finish: Finish,
    fetch: PanelPrefetch | None = None,
    paired: bool = False,
    inside: Expr | None = None,
) -> None:
    """Emit one tile: `rows` of the output by `columns` columns from `first_column`, where `panel` begins.

    `bases`: offset in `x` of each row's first element. `loops`: the reduction, outermost first.
    `accumulator`: dtype of the sums. `finish`: stores one result. `fetch`: prefetches issued meanwhile.
    `paired`: the panel is packed by pairs (see `pack`). `inside`: where the tile begins in it; None: 0.
    """
    count, vectors, lanes = len(rows), ceil_div(columns, tile.lanes), tile.lanes
    depth = 1
    for loop in loops:
        depth *= loop.extent
    # One buffer per row: TVM puts buffers of more than 1 KiB, such as the whole tile on AVX-512, on the heap.
    sums = [registers([vectors, lanes], accumulator) for _ in range(count)]
    for row in range(count):
        for v in range(vectors):
            with vector(lanes) as lane:
                store(sums[row], [int64(v), lane], tirx.const(0, accumulator))
    first_weight = panel * int64(depth * tile.columns)
    first_weight = bind(first_weight if inside is None else first_weight + inside)
    if paired:
        *outer, inner = loops
        loops = [*outer, Loop(inner.extent // 2, 2 * inner.x_stride)]
        fetch = None if fetch is None else fetch.by_pairs()

    def pair_step(x_offset: Expr, step: Expr) -> None:
        """Emit two steps of k; the last vector of columns computes both at once."""
        unpaired, lane = (vectors - 1) * lanes, ramp(int64(0), lanes)
        at = first_weight + step * int64(2 * unpaired + lanes)
        pair_weights = at + int64(2 * unpaired)
        for k in range(2):
            for row in range(count if vectors > 1 else 0):
                left = load(x, [bases[row] + x_offset + int64(k)])
                for v in range(vectors - 1):
                    with vector(lanes) as each:
                        right = load(weights, [at + int64(k * unpaired + v * lanes) + each])
                        place = [int64(v), each]
                        store(sums[row], place, load(sums[row], place) + left * right)
        for row in range(count):  # after the other vectors: with all weights loaded at once, 14 rows spill
            two = load(x, [ramp(bases[row] + x_offset, 2)])
            both = tirx.Shuffle([two] * (lanes // 2), [tirx.IntImm("int32", k) for k in range(lanes)])
            place = [int64(vectors - 1), lane]
            right = load(weights, [ramp(pair_weights, lanes)])
            store(sums[row], place, load(sums[row], place) + both * right)

    def reduce(remaining: Sequence[Loop], x_offset: Expr, step: Expr) -> None:
        """Emit the loops `remaining` of the reduction, at `x_offset` in x and step `step` of k."""
        if remaining:
            loop = remaining[0]
            if loop.extent == 1:
                reduce(remaining[1:], x_offset, step)
                return
            if fetch is not None and all(inner.extent == 1 for inner in remaining[1:]):
                with serial(loop.extent // fetch.steps) as block:
                    number = step * int64(loop.extent // fetch.steps) + block
                    for line in range(fetch.lines):
                        prefetch(
                            weights, fetch.first + (number * int64(fetch.lines) + int64(line)) * int64(LINE)
                        )
                    if fetch.later is not None:
                        turn = number if fetch.later.turns == 1 else divide(number, fetch.later.turns)
                        for line in range(fetch.later.lines):
                            where = (turn * int64(fetch.later.lines) + int64(line)) * int64(LINE)
                            prefetch(weights, fetch.later.first + where)
                    with serial(fetch.steps) as inside:
                        k = block * int64(fetch.steps) + inside
                        reduce([], x_offset + k * int64(loop.x_stride), step * int64(loop.extent) + k)
                return
            with serial(loop.extent) as k:
                reduce(remaining[1:], x_offset + k * int64(loop.x_stride), step * int64(loop.extent) + k)
            return
        if paired:
            pair_step(x_offset, step)
            return
        at = first_weight + step * int64(tile.columns)
        for row in range(count):
            left = tirx.Cast(accumulator, load(x, [bases[row] + x_offset]))
            for v in range(vectors):
                with vector(lanes) as lane:
                    column = v // tile.vectors * depth * tile.columns + v % tile.vectors * lanes
                    right = tirx.Cast(accumulator, load(weights, [at + int64(column) + lane]))
                    total = load(sums[row], [int64(v), lane]) + left * right
                    store(sums[row], [int64(v), lane], total)

    reduce(loops, int64(0), int64(0))
    ends = _add_pairs(sums, vectors - 1, lanes) if paired else []
    for row in range(count):
        for v in range(vectors):
            held, begin = ends[row] if paired and v == vectors - 1 else (sums[row], 0)
            for offset, width in chunks(min(lanes, columns - v * lanes), lanes):
                with vector(width) as lane:
                    value = load(held, [int64(v), int64(begin + offset) + lane])
                    finish(rows[row], first_column + int64(v * lanes + offset) + lane, value)
