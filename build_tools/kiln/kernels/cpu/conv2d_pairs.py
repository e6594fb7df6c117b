"""The matmul of conv2d.py on 8-bit integers by 16-bit pairs, for x86 without VNNI and WebAssembly.

Computation  sum[row][column] += x[row][k] * w[k][column], int8 or uint8 by int8, in int32: pmaddwd multiplies
             and adds two products of 16 bits, which never exceeds 32. pmaddubsw, which adds two products
             u8 x s8 in 16 bits with saturation, is exact only with the sign of one operand moved to the
             other, by two more instructions that share the ports of the multiplications.
Packing      As in gemm_int8.py, arrangement "groups": a vector of weights is widened when it is loaded.
             Rows of x are gathered and widened to 16 bits in scratch memory, a few tiles at a time, in the
             order of the packed weights.
Schedule     Four values of k of a row, in every lane, times four values of k of LANES columns: each column
             has two sums, which are added at the end. Weights are read again for each part of the rows.
Applies      int8 weights and int32 sums, one group, runs of at least four bytes. Where sums are long it is
             1.2 times as fast as the method `sign` of gemm_int8.py on Zen 4.
Accuracy     Exact: no step saturates or rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from kiln.kernels.cpu.conv2d import applies as conv2d_applies
from kiln.kernels.cpu.convolution import Convolution
from kiln.kernels.cpu.epilogue import Epilogue
from kiln.kernels.cpu.gemm_int8 import IntegerProduct, merged
from kiln.kernels.cpu.gemm_tile import Loop
from kiln.kernels.cpu.int8_packing import GROUP
from kiln.kernels.cpu.pair_kernel import PairBody, multiplies_pairs, pair_kernel, pair_tile, product_of
from kiln.kernels.cpu.runtime_product import multiply_pairs
from kiln.opinfo.attach import OpInfo
from kiln.tir.builder import (
    Expr,
    Kernel,
    Machine,
    bind,
    chunks,
    divide,
    int64,
    load,
    modulo,
    registers,
    serial,
    store,
    vector,
)
from kiln.tir.fused import Fused, Nest
from kiln.tir.symbols import Extent, ceil_div
from kiln.tir.tiled_loops import blocks, share_of, task_blocks, tasks_of
from kiln.tir.vector_expr import ramp

_SCRATCH = 8 << 10  # bytes of widened rows of a task, where one tile of rows needs less; more was not faster
_ROWS = 6
# With fewer columns or fewer terms of a sum, gathering the rows and adding two sums a column takes too long.
_LEAST_COLUMNS, _LEAST_DEPTH = 8, 64


def applies(op: OpInfo, fused: Fused, anchor: Nest, constants: set[int]) -> bool:
    """Whether this family can compute the group that begins with `op`."""
    if not conv2d_applies(op, fused, anchor, constants) or str(anchor.buffer.dtype) != "int32":
        return False
    x, weights = (str(param.dtype) for param in fused.params[:2])
    conv = Convolution(op, fused, anchor)
    runs = merged(conv.loops())
    fills_groups = runs[-1].extent >= GROUP and runs[-1].x_stride == 1
    return x in ("int8", "uint8") and weights == "int8" and conv.groups == 1 and fills_groups


def pays(op: OpInfo, fused: Fused, anchor: Nest, machine: Machine) -> bool:
    """Whether the machine multiplies pairs fastest, and its other variants pack weights in groups."""
    conv = Convolution(op, fused, anchor)
    if not multiplies_pairs(machine, machine.lanes("int32") // 2):
        return False
    depth = conv.kernel_h * conv.kernel_w * conv.depth
    large = conv.columns >= _LEAST_COLUMNS and depth >= _LEAST_DEPTH
    return large and fused.ranges.greatest(conv.rows) > 1


@dataclass(frozen=True)
class GatheredRows:
    """Rows of x in scratch memory: `size` values of 16 bits each, gathered from `runs` of bytes of x."""

    runs: tuple[Loop, ...]
    size: int

    def gather(self, x: Any, base: Expr, memory: Any, place: Expr, lanes: int) -> None:
        """Write the row of x that begins at x[base] to memory[place]."""
        run = self.runs[-1].extent
        packed = ceil_div(run, GROUP) * GROUP

        def over(loops: Sequence[Loop], source: Expr, number: Expr) -> None:
            if loops:
                with serial(loops[0].extent) as index:
                    step = source + index * int64(loops[0].x_stride)
                    over(loops[1:], step, number * int64(loops[0].extent) + index)
                return
            to = place + number * int64(packed)

            def copy(offset: Expr, target_offset: Expr, width: int) -> None:
                value = tirx.Cast(f"int16x{width}", load(x, [ramp(source + offset, width)]))
                store(memory, [ramp(to + target_offset, width)], value)

            even = run // GROUP * GROUP
            whole_vectors = even // lanes
            if whole_vectors:
                with serial(whole_vectors) as block:
                    copy(block * int64(lanes), block * int64(lanes), lanes)
            for offset, width in chunks(even - whole_vectors * lanes, lanes):
                at = int64(whole_vectors * lanes + offset)
                copy(at, at, width)
            if run > even:  # the last group begins earlier, as its weights do
                copy(int64(run - GROUP), int64(even), GROUP)

        over(self.runs[:-1], base, int64(0))


@dataclass(frozen=True)
class PairLoops:
    """Emits the kernel: `x` and packed `weights` are its buffers, both flat.

    `part`: rows of the matmul that are gathered at a time; `parts`: their number; `tasks`: number of tasks,
    None if the kernel is not split. `finish(row, column, value)` stores a sum.
    """

    conv: Convolution
    product: IntegerProduct
    rows: GatheredRows
    part: int
    parts: Extent
    tasks: int | None
    x: Any
    weights: Any
    finish: Callable[[Expr, Expr, Expr], None]

    def emit(self, begin: Expr, end: Expr) -> None:
        """Emit the tasks [begin, end), each with scratch memory of its own."""
        memory = registers([self.part * self.rows.size * (self.tasks or 1)], "int16")
        if self.tasks is None:
            blocks(self.conv.rows, self.part, lambda row, n: self._part(memory, row, n, int64(0)))
            return
        with tasks_of(self.tasks, True, begin, end) as task:
            base = bind(task * int64(self.part * self.rows.size))
            first, after = share_of(task, self.parts, self.tasks)
            task_blocks(
                self.conv.rows, self.part, True, first, after,
                lambda row, n: self._part(memory, row, n, base),
            )  # fmt: skip

    def _part(self, memory: Any, first_row: Expr, count: int, place: Expr) -> None:
        """Emit `count` rows from `first_row`: gather them to memory[place], then compute all columns."""
        tile, product = self.product.tile, self.product
        first_row = bind(first_row)
        with serial(count) as number:
            base = bind(self.conv.base(first_row + number, int64(0)))
            to = place + number * int64(self.rows.size)
            self.rows.gather(self.x, base, memory, to, 4 * tile.lanes)

        def columns_at(first_column: Expr, columns: int) -> None:
            panel = divide(first_column, tile.columns) * int64(product.panel_bytes)
            inside = modulo(first_column, tile.columns) * int64(GROUP)
            weights = bind(panel + inside + int64(product.head_bytes))

            def tile_at(row: Expr, height: int) -> None:
                starts = [bind(place + (row + int64(i)) * int64(self.rows.size)) for i in range(height)]
                sums = _sums(product, memory, starts, self.weights, weights, columns)
                numbers = [bind(first_row + row + int64(i)) for i in range(height)]
                _store(sums, numbers, first_column, columns, tile.lanes, self.finish)

            blocks(count, tile.rows, tile_at)

        blocks(self.conv.columns, tile.width, columns_at)


def make(op: OpInfo, fused: Fused, anchor: Nest, last: Nest, machine: Machine) -> tuple[Kernel, list[Any]]:
    """Make the kernel of nests `anchor` to `last`; return it with the buffers of its parameters."""
    conv, greatest, shape = Convolution(op, fused, anchor), fused.ranges.greatest, last.buffer.shape
    most_rows = greatest(conv.rows)
    tile = pair_tile(machine, most_rows, conv.columns, machine.lanes("int32") // 2)
    product = product_of(conv, tile, machine)
    rows = GatheredRows(product.runs, product.groups * GROUP)
    tiles = ceil_div(most_rows, tile.rows)
    part_rows = min(tiles, max(1, _SCRATCH // (2 * rows.size * tile.rows))) * tile.rows
    part_count = ceil_div(conv.rows, part_rows)
    shared = machine.shares(conv.macs // (2 * tile.lanes))
    tasks = min(machine.cores, greatest(part_count)) if shared and greatest(part_count) > 1 else None

    def emit(epilogue: Epilogue, x: Any, weights: Any, begin: Expr, end: Expr) -> None:
        def finish(row: Expr, column: Expr, value: Expr) -> None:
            epilogue.store(conv.result_indices(row, column, shape), value)

        PairLoops(conv, product, rows, part_rows, part_count, tasks, x, weights, finish).emit(begin, end)

    return pair_kernel("conv2d", PairBody(conv, product, tasks, emit), fused, anchor, last)


def _sums(
    product: IntegerProduct, rows: Any, starts: Sequence[Expr], weights: Any, first: Expr, columns: int
) -> list[list[Any]]:
    """Emit the loop over k of one tile; the sums by row and vector, two for each column."""
    tile = product.tile
    vectors, width = ceil_div(columns, tile.lanes), GROUP * tile.lanes
    pair_lanes = ramp(int64(0), 2 * tile.lanes)
    totals = [[registers([2 * tile.lanes], "int32") for _ in range(vectors)] for _ in starts]
    for accumulator in (accumulator for row in totals for accumulator in row):
        store(accumulator, [pair_lanes], tirx.Broadcast(tirx.const(0, "int32"), 2 * tile.lanes))
    with serial(product.groups) as number:
        offset = bind(first + number * int64(GROUP * tile.columns))
        right = [
            bind(tirx.Cast(f"int16x{width}", load(weights, [ramp(offset + int64(v * width), width)])))
            for v in range(vectors)
        ]
        for start, row in zip(starts, totals, strict=True):
            four = tirx.reinterpret("int64", load(rows, [ramp(start + number * int64(GROUP), GROUP)]))
            left = bind(tirx.reinterpret(f"int16x{width}", tirx.Broadcast(four, tile.lanes)))
            for accumulator, column in zip(row, right, strict=True):
                pairs = multiply_pairs(product.method, 2 * tile.lanes, left, column)
                store(accumulator, [pair_lanes], load(accumulator, [pair_lanes]) + pairs)
    return totals


def _store(
    sums: Sequence[Sequence[Any]], rows: Sequence[Expr], first: Expr, columns: int, lanes: int, finish: Any
) -> None:
    """Add the two sums of each column, and store the results of two vectors of columns at a time."""
    pair_lanes = ramp(int64(0), 2 * lanes)
    for row, totals in zip(rows, sums, strict=True):
        for v in range(0, len(totals), 2):
            two = [load(totals[min(v + n, len(totals) - 1)], [pair_lanes]) for n in range(2)]
            even, odd = (
                tirx.Shuffle(two, [tirx.IntImm("int32", lane) for lane in range(begin, 4 * lanes, 2)])
                for begin in range(2)
            )
            result = registers([2 * lanes], "int32")
            store(result, [pair_lanes], even + odd)
            for offset, width in chunks(min(2 * lanes, columns - v * lanes), 2 * lanes):
                with vector(width) as lane:
                    value = load(result, [int64(offset) + lane])
                    finish(row, first + int64(v * lanes + offset) + lane, value)
