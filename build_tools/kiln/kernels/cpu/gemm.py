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
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script import tirx as script
from tvm.tirx.script.builder import ir as builder

from kiln.config.sizes import ceil_div
from kiln.tir.builder import (
    CACHE_LINE,
    CACHE_SETS,
    Array,
    Expr,
    Machine,
    bind,
    chunks,
    divide,
    int64,
    load,
    padded,
    registers,
    serial,
    store,
    vector,
)
from kiln.tir.vector_expr import ramp

# finish(row, column, sum) stores one element of the output.
Finish = Callable[[Expr, Expr, Expr], None]


@dataclass(frozen=True)
class Tile:
    """A register tile: `rows` rows by `vectors` vectors of `lanes` elements, times `beside`.

    The tile is `beside` adjacent panels wide, or a panel is divided into `parts` tiles; one of them is 1. The
    packing of weights depends on the panel alone: kernels for one row and for many rows share weights, and so
    do processors with vectors of different widths.
    """

    rows: int
    vectors: int
    lanes: int
    beside: int = 1
    parts: int = 1

    @property
    def columns(self) -> int:
        """Columns of a panel (NR)."""
        return self.vectors * self.lanes * self.parts

    @property
    def width(self) -> int:
        """Columns of the tile, over all adjacent panels."""
        return self.vectors * self.lanes * self.beside

    def in_one(self) -> Tile:
        """The tile of equal width that has a single panel."""
        return Tile(self.rows, self.vectors * self.beside, self.lanes)


# Rows of a tile of three vectors, for 3 (or 9, …) vectors of columns: panels of two leave a narrow last one.
# Measured on Zen 5: 5 % faster on AVX-512, 8 to 12 % on AVX2.
_ROWS_OF_THREE_VECTORS = {"avx2": 4, "avx512": 8}
# Up to so many tiles along the rows, a low last tile still counts: tiles get equal heights.
_FEW_TILES = 16
# Ways of each set of the L1 cache that weights and results need in addition to the rows of x.
_OTHER_WAYS = 2


def choose_tile(
    machine: Machine, rows: int, columns: int, wanted: tuple[int, int] | None = None, apart: int = 0
) -> Tile:
    """Choose the register tile for `rows` by `columns` outputs with a 32-bit accumulator.

    `wanted`: rows and vectors from a measurement, used instead of the heuristic. `apart`: bytes between
    consecutive rows of the left operand where that distance is constant, else 0.

    Sizes leave registers for the NV weight vectors and one broadcast. Measured on AVX2: 6x2 vectors
    reaches 96 % of the peak, while 7x2 spills and tiles one vector wide are slow.
    """
    lanes = machine.lanes("float32")
    if machine.registers >= 32 and machine.vector_bits >= 512:
        best, vectors = 14, 2
    elif machine.registers >= 32:
        best, vectors = (6, 3) if machine.in_order else (8, 3)
    else:
        best, vectors = 6, 2
    across = ceil_div(columns, lanes)
    threes = machine.packing is None or machine.packing.columns % (3 * lanes) == 0
    if machine.isa in _ROWS_OF_THREE_VECTORS and across % 3 == 0 and across % 2 and threes:
        best, vectors = _ROWS_OF_THREE_VECTORS[machine.isa], 3
    period = CACHE_LINE * CACHE_SETS
    if machine.isa == "avx512" and apart and apart % period == 0:
        # All rows map to one set of the L1 cache, which has to hold a line of each row until it is read.
        # Zen 5: 3 to 6 % faster with 10 rows than with 14.
        best = max(1, min(best, machine.l1_bytes // period - _OTHER_WAYS))
    if wanted is not None:
        best, vectors = wanted
    vectors = min(vectors, ceil_div(columns, lanes))
    tiles = ceil_div(rows, best)
    if wanted is None and tiles <= _FEW_TILES:
        # As many tiles, of equal height: a tile of two rows waits for its own sums.
        best = ceil_div(rows, tiles)
    tile = Tile(min(best, rows), vectors, lanes, panels_beside(rows, columns, vectors, lanes))
    return tile if machine.packing is None else fitted(tile, machine.packing.columns, columns)


def fitted(tile: Tile, panel: int, columns: int) -> Tile:
    """The tile nearest to `tile` in width that reads panels of `panel` columns, of `columns` in all.

    `tile` itself where the panel is not a multiple of its vectors: such a tile reads other panels.
    """
    if panel % tile.lanes:
        return tile
    whole, wide = panel // tile.lanes, tile.vectors * tile.beside
    if whole <= wide:
        return Tile(tile.rows, whole, tile.lanes, max(1, min(wide // whole, ceil_div(columns, panel))))
    vectors = max(count for count in range(1, wide + 1) if whole % count == 0)
    return Tile(tile.rows, vectors, tile.lanes, parts=whole // vectors)


# Vectors of a tile of one row: a vector-matrix product needs independent sums to hide their latency.
_VECTORS_OF_ONE_ROW = 4


def panels_beside(rows: int, columns: int, vectors: int, lanes: int) -> int:
    """Number of adjacent panels of `vectors` vectors in a tile: 1 unless there is only one row."""
    if rows > 1:
        return 1
    return min(ceil_div(_VECTORS_OF_ONE_ROW, vectors), ceil_div(columns, vectors * lanes))


# ISAs where one load broadcasts two adjacent numbers, and registers suffice for a third kind of operand.
_PAIRS = ("avx512",)


def pairs_pay(machine: Machine, rows: int, columns: int, depth: int) -> bool:
    """Whether the last vector of columns, half empty, should process two steps of k at a time.

    Its lanes alternate between an even k and the following odd k, and are added up at the end: half the
    multiply-adds. Only for rows of x at equal distances: otherwise the row addresses do not fit the
    registers, and loading them takes longer than the time saved.
    """
    lanes = machine.lanes("float32")
    half_empty = 0 < columns % lanes <= lanes // 2
    return machine.isa in _PAIRS and half_empty and rows > 1 and depth % 2 == 0 and depth >= lanes


def pack(weights: Array, tile: Tile, paired: bool = False) -> Array:
    """Pack weights [K, N] as [panels][K][NR], flat; N is padded with zeros.

    `paired` (see `pairs_pay`): the last panel is [K/2][2 * its full vectors, a vector of pairs], then zeros.
    """
    full = padded(weights, 1, tile.columns)
    depth, columns = full.shape
    panels: Array = full.reshape(depth, columns // tile.columns, tile.columns).transpose(1, 0, 2)
    if not paired:
        return panels.reshape(-1)
    lanes, last = tile.lanes, panels[-1].reshape(depth // 2, 2, tile.columns)
    unpaired = (weights.shape[1] - 1) % tile.columns // lanes * lanes
    pairs = last[:, :, unpaired : unpaired + lanes // 2].transpose(0, 2, 1).reshape(depth // 2, lanes)
    last_packed = np.concatenate([last[:, 0, :unpaired], last[:, 1, :unpaired], pairs], axis=1).reshape(-1)
    rest = depth * tile.columns - last_packed.size
    return np.concatenate([panels[:-1].reshape(-1), last_packed, np.zeros(rest, weights.dtype)])


@dataclass(frozen=True)
class Loop:
    """One loop of the reduction: `extent` iterations, `x_stride` elements of x apart."""

    extent: int
    x_stride: int


@dataclass(frozen=True)
class LaterPrefetch:
    """Prefetches on behalf of later kernels: `lines` cache lines, starting at element `first`.

    A tile issues them whenever it prefetches its own panel; the address advances every `turns` times.
    """

    first: Expr
    lines: int
    turns: int


def later(region: tuple[int, int], share: Expr, shares: int, times: int) -> LaterPrefetch:
    """The prefetches of `region` that tile number `share` of `shares` issues for later kernels.

    `region`: first byte and end, counted from the beginning of the weights. `times`: how often a tile
    prefetches.
    """
    begin, end = region
    each = (end - begin) / (4 * LINE) / shares / times
    lines, turns = max(1, round(each)), 1
    while each * turns < 0.7 and turns * 2 <= times:  # each line twice costs less than half of them skipped
        turns *= 2
    lines_per_tile = ceil_div(times, turns) * lines
    return LaterPrefetch(bind(int64(begin // 4) + share * int64(lines_per_tile * LINE)), lines, turns)


@dataclass(frozen=True)
class PanelPrefetch:
    """Prefetches of weights while a tile is computed: reading cold weights costs as much time as the sums.

    From element `first` on, `lines` cache lines for every `steps` iterations of the innermost loop. The
    address may be past the end of the weights, where the next layer's begin: a prefetch never faults.
    `later`: prefetches on behalf of later kernels.
    """

    first: Expr
    steps: int
    lines: int
    later: LaterPrefetch | None = None

    def by_pairs(self) -> PanelPrefetch:
        """Prefetches at this rate for a loop that does two steps per iteration, without `later`."""
        if self.steps > 1:
            return PanelPrefetch(self.first, self.steps // 2, self.lines)
        return PanelPrefetch(self.first, 1, 2 * self.lines)


LINE = CACHE_LINE // 4  # float32 elements in a cache line; of shorter lines, every second is prefetched


def ahead(
    tile: Tile, loops: Sequence[Loop], panel: Expr, index: Expr, tiles: int, distance: int = 1,
    inside: Expr | None = None,
) -> PanelPrefetch:  # fmt: skip
    """The prefetches that tile `index` of `tiles` at `panel` issues for the panels `distance` tile widths on.

    `loops`: the reduction, outermost first. `inside`: first column of the tile in its panel; None: 0.
    """
    depth = 1
    for loop in loops:
        depth *= loop.extent
    inner = next((loop.extent for loop in reversed(loops) if loop.extent > 1), 1)
    each = max(1, tile.width // LINE)  # cache lines per step of k
    steps = 1
    while inner % (steps * 2) == 0 and steps * 2 * each <= tiles:
        steps *= 2
    lines = max(1, -(-each * steps // tiles))
    first = (panel + int64(tile.beside * distance)) * int64(depth * tile.columns) + index * int64(
        depth // steps * lines * LINE
    )
    if inside is not None:
        first = first + inside * int64(depth)
    return PanelPrefetch(bind(first), steps, lines)


def _prefetch(weights: Any, at: Expr) -> None:
    """Emit a prefetch of weights[at] into the second-level cache."""
    address = script.address_of(load(weights, [at]))
    read, second_level, data = (tirx.IntImm("int32", value) for value in (0, 2, 1))
    builder.evaluate(script.call_llvm_intrin("void", "llvm.prefetch", address, read, second_level, data))


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
                        _prefetch(
                            weights, fetch.first + (number * int64(fetch.lines) + int64(line)) * int64(LINE)
                        )
                    if fetch.later is not None:
                        turn = number if fetch.later.turns == 1 else divide(number, fetch.later.turns)
                        for line in range(fetch.later.lines):
                            where = (turn * int64(fetch.later.lines) + int64(line)) * int64(LINE)
                            _prefetch(weights, fetch.later.first + where)
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
