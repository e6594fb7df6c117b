"""The packed matmul behind convolutions and dense layers: one register tile, many uses.

A tile is MR rows (output pixels, or rows of the left matrix) by NR columns (output channels); NR is NV
vectors. Weights are packed offline as [column panel][k][NR], so that the inner loop reads them in order:

    for k: for row in MR: for v in NV: acc[row][v] += broadcast(x[row][k]) * w[panel][k][v]

With MR * NV accumulators in registers and one broadcast per row this is bound by the multiply-add units
(Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008). 64-bit ARM needs no
broadcast: one load fetches x[row][k] of four steps of k, and multiply-adds take each from its lane. The last
panel and the last tile may be narrower; panels are padded with zeros offline, and only real columns are
stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx
from tvm.ir import Expr

from kiln.config.sizes import ceil_div
from kiln.kernels.cpu.gemm_prefetch import LINE, PanelPrefetch, prefetch
from kiln.kernels.cpu.gemm_tile import Loop, Tile
from kiln.kernels.cpu.output_tile import OutputTile, TileOperands
from kiln.kernels.cpu.panel_sums import adjacent_lefts
from kiln.tir.builder import bind, divide, int64, load, registers, serial, store, vector
from kiln.tir.vector_expr import ramp

_HALF_WORD = 32  # bits


def opaque_half(value: Expr) -> Expr:
    """An 8-bit value widened to 16 bits in a way that LLVM does not narrow again.

    If LLVM knew, it would broadcast the byte to a vector and widen that: three instructions for RVV's one.
    """
    return tirx.call_llvm_pure_intrin("int16", "llvm.ssa.copy", tirx.Cast("int16", value))


def _add_pairs(sums: Sequence[Any], last: int, lanes: int) -> list[tuple[Any, int]]:
    """Add adjacent lanes of sums[row][last]; return the buffer and first lane of each row's results.

    Two rows are added at a time: for a single row LLVM selects vhaddps, which can address only 16 registers,
    and spills others in the preceding loop.
    """
    indices, ends = [int64(last), ramp(int64(0), lanes)], []
    for row in range(0, len(sums), 2):
        two = [load(sums[min(index, len(sums) - 1)], indices) for index in (row, row + 1)]
        even, odd = (
            tirx.Shuffle(two, [tirx.IntImm("int32", lane) for lane in range(first, 2 * lanes, 2)])
            for first in range(2)
        )
        store(sums[row], indices, even + odd)
        ends += [(sums[row], 0), (sums[row], lanes // 2)]
    return ends[: len(sums)]


@dataclass(frozen=True)
class _TileSums:
    """The sums of one tile in registers, and the code that adds to them.

    `sums`: by row, a buffer of [vectors, lanes]. `widths`: lanes of each vector that are computed.
    `first_weight`: offset in the weights of the tile's first weight. `depth`: steps of the reduction.
    """

    tile: Tile
    sums: Sequence[Any]
    widths: Sequence[int]
    operands: TileOperands
    first_weight: Expr
    depth: int
    accumulator: str

    def clear(self) -> None:
        """Emit the stores of zeros."""
        for row_sums in self.sums:
            for v, width in enumerate(self.widths):
                with vector(width) as lane:
                    store(row_sums, [int64(v), lane], tirx.const(0, self.accumulator))

    def step(self, x_offset: Expr, step: Expr) -> None:
        """Emit one step of k."""
        lefts = [load(self.operands.x, [base + x_offset]) for base in self.operands.bases]
        self._add([opaque_half(left) if self.tile.halves else left for left in lefts], step)

    def left_steps(self, x_offset: Expr, step: Expr) -> None:
        """Emit the `left_steps` steps of k of group `step`, with one load of left operands for each row."""
        steps = self.tile.left_steps
        offsets = [base + x_offset for base in self.operands.bases]
        for k, lefts in enumerate(adjacent_lefts(self.operands.x, offsets, steps)):
            self._add(lefts, step * int64(steps) + int64(k))

    def _add(self, lefts: Sequence[Expr], step: Expr) -> None:
        """Emit the products of step `step` of k: of the left operand of each row with the weights."""
        lanes, vectors_of_panel = self.tile.lanes, self.tile.vectors
        offset = self.first_weight + step * int64(self.tile.columns)
        for row_sums, operand in zip(self.sums, lefts, strict=True):
            left = tirx.Cast(self.accumulator, operand)
            for v, width in enumerate(self.widths):
                with vector(width) as lane:
                    panel, inside = divmod(v, vectors_of_panel)
                    column = panel * self.depth * self.tile.columns + inside * lanes
                    right = load(self.operands.weights, [offset + int64(column) + lane])
                    right = tirx.Cast(self.accumulator, right)
                    products = load(row_sums, [int64(v), lane]) + left * right
                    store(row_sums, [int64(v), lane], products)

    def pair_step(self, x_offset: Expr, step: Expr) -> None:
        """Emit two steps of k; the last vector of columns computes both at once."""
        lanes, last = self.tile.lanes, len(self.widths) - 1
        x, bases, weights = self.operands.x, self.operands.bases, self.operands.weights
        unpaired, lane = last * lanes, ramp(int64(0), lanes)
        at = self.first_weight + step * int64(2 * unpaired + lanes)
        pair_weights = at + int64(2 * unpaired)
        for k in range(2):
            for row_sums, base in zip(self.sums, bases, strict=True) if last else ():
                left = load(x, [base + x_offset + int64(k)])
                for v in range(last):
                    with vector(lanes) as each:
                        right = load(weights, [at + int64(k * unpaired + v * lanes) + each])
                        target = [int64(v), each]
                        store(row_sums, target, load(row_sums, target) + left * right)
        # After the other vectors: with all weights loaded at once, 14 rows spill.
        for row_sums, base in zip(self.sums, bases, strict=True):
            two = load(x, [ramp(base + x_offset, 2)])
            broadcast_pair = tirx.Shuffle(
                [two] * (lanes // 2), [tirx.IntImm("int32", k) for k in range(lanes)]
            )
            target = [int64(last), lane]
            right = load(weights, [ramp(pair_weights, lanes)])
            store(row_sums, target, load(row_sums, target) + broadcast_pair * right)

    def finish(self, out: OutputTile, paired: bool) -> None:
        """Emit the epilogue and the store of every sum."""
        lanes, last = self.tile.lanes, len(self.widths) - 1
        ends = _add_pairs(self.sums, last, lanes) if paired else []

        def sums_of(number: int) -> Callable[[int, int, Expr], Expr]:
            def sums(v: int, offset: int, lane: Expr) -> Expr:
                row_sums, begin = ends[number] if paired and v == last else (self.sums[number], 0)
                return load(row_sums, [int64(v), int64(begin + offset) + lane])

            return sums

        for number, row in enumerate(out.rows):
            out.store(row, lanes, sums_of(number))


@dataclass(frozen=True)
class _DoubledSums(_TileSums):
    """Sums of two rows in one register of 64 bits (`doubled_tile`): a buffer of `sums` for each pair of rows.

    The last of an odd number of rows is alone in its register.
    """

    def step(self, x_offset: Expr, step: Expr) -> None:
        """Emit one step of k."""
        lefts = [tirx.Cast("int64", load(self.operands.x, [base + x_offset])) for base in self.operands.bases]
        pairs = [lefts[row : row + 2] for row in range(0, len(lefts), 2)]
        both = [bind(pair[0] + (pair[1] << int64(_HALF_WORD)) if pair[1:] else pair[0]) for pair in pairs]
        self._add(both, step)

    def finish(self, out: OutputTile, paired: bool) -> None:
        """Emit the epilogue and the store of every sum."""

        def sums_of(number: int) -> Callable[[int, int, Expr], Expr]:
            def sums(v: int, offset: int, lane: Expr) -> Expr:
                total = load(self.sums[number // 2], [int64(v), int64(offset) + lane])
                low = tirx.Cast("int32", total)
                if number % 2 == 0:
                    return low
                return tirx.Cast("int32", (total - tirx.Cast("int64", low)) >> int64(_HALF_WORD))

            return sums

        for number, row in enumerate(out.rows):
            out.store(row, self.tile.lanes, sums_of(number))


def product(
    tile: Tile,
    out: OutputTile,
    operands: TileOperands,
    loops: Sequence[Loop],
    accumulator: str,
    fetch: PanelPrefetch | None = None,
    paired: bool = False,
) -> None:
    """Emit the computation and the store of one tile, which has at most the size of `tile`.

    `loops`: the reduction, outermost first. `accumulator`: dtype of the sums. `fetch`: prefetches issued
    meanwhile. `paired`: the panel is packed by pairs (see `pack`).
    """
    lanes, columns, rows = tile.lanes, out.columns, out.rows
    vectors, depth = ceil_div(columns, lanes), math.prod(loop.extent for loop in loops)
    form, buffers = _TileSums, len(rows)
    if tile.doubled:
        form, buffers, accumulator = _DoubledSums, ceil_div(len(rows), 2), "int64"
    # One buffer per row: TVM puts buffers of more than 1 KiB, such as the whole tile on AVX-512, on the heap.
    sums = [registers([vectors, lanes], accumulator) for _ in range(buffers)]
    first_weight = operands.panel * int64(depth * tile.columns)
    widths = [lanes if paired else tile.lanes_of(columns - v * lanes) for v in range(vectors)]
    tile_sums = form(tile, sums, widths, operands, first_weight, depth, accumulator)
    tile_sums.clear()
    if operands.inside is not None:
        first_weight = first_weight + operands.inside
    tile_sums = replace(tile_sums, first_weight=bind(first_weight))
    *outer, inner = loops
    together, add = 1, tile_sums.step  # steps of k that `add` emits
    if paired:
        together, add = 2, tile_sums.pair_step
        fetch = None if fetch is None else replace(fetch, later=None)
    elif inner.x_stride == 1 and inner.extent % tile.left_steps == 0 and accumulator == "float32":
        together, add = tile.left_steps, tile_sums.left_steps
    if together > 1:
        loops = [*outer, Loop(inner.extent // together, together * inner.x_stride)]
        fetch = None if fetch is None else fetch.in_steps_of(together)
    _reduce(loops, int64(0), int64(0), add, operands.weights, fetch)
    tile_sums.finish(out, paired)


def _reduce(
    loops: Sequence[Loop],
    x_offset: Expr,
    step: Expr,
    add: Callable[[Expr, Expr], None],
    weights: Any,
    fetch: PanelPrefetch | None,
) -> None:
    """Emit the loops of a reduction, at `x_offset` in x and step `step` of k; `add` emits the innermost."""
    if not loops:
        add(x_offset, step)
        return
    loop, *inner = loops
    extent, stride = int64(loop.extent), int64(loop.x_stride)
    if loop.part is not None:
        first, count = loop.part
        with serial(count, first) as k:
            _reduce(inner, x_offset + k * stride, step * extent + k, add, weights, fetch)
    elif loop.extent == 1:
        _reduce(inner, x_offset, step, add, weights, fetch)
    elif fetch is not None and all(inner_loop.extent == 1 for inner_loop in inner):
        with serial(loop.extent // fetch.steps) as block:
            _prefetch(fetch, weights, step * int64(loop.extent // fetch.steps) + block)
            with serial(fetch.steps) as inside:
                k = block * int64(fetch.steps) + inside
                add(x_offset + k * stride, step * extent + k)
    else:
        with serial(loop.extent) as k:
            _reduce(inner, x_offset + k * stride, step * extent + k, add, weights, fetch)


def _prefetch(fetch: PanelPrefetch, weights: Any, number: Expr) -> None:
    """Emit the prefetches of block `number` of a reduction's steps."""
    for line in range(fetch.lines):
        prefetch(weights, fetch.first + (number * int64(fetch.lines) + int64(line)) * int64(LINE))
    if fetch.later is None:
        return
    turn = number if fetch.later.turns == 1 else divide(number, fetch.later.turns)
    for line in range(fetch.later.lines):
        where = (turn * int64(fetch.later.lines) + int64(line)) * int64(LINE)
        prefetch(weights, fetch.later.first + where)
