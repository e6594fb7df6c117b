"""The matmul of conv2d.py on 8-bit integers by 16-bit pairs, for x86 without VNNI and WebAssembly.

Computation  sum[row][column] += x[row][k] * w[k][column], int8 or uint8 by int8, in int32: pmaddwd multiplies
             and adds two products of 16 bits, which never exceeds 32. pmaddubsw, which adds two products
             u8 x s8 in 16 bits with saturation, is exact only with the sign of one operand moved to the
             other: more work for each value of x, see conv2d_magnitudes.py.
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
from typing import Any

from tvm import tirx
from tvm.ir import Expr

from kiln.kernels.cpu.conv2d import applies as conv2d_applies
from kiln.kernels.cpu.convolution import Convolution
from kiln.kernels.cpu.epilogue import Epilogue
from kiln.kernels.cpu.gathered_loops import GatheredLoops, copied_row
from kiln.kernels.cpu.gemm_int8 import IntegerProduct, merged
from kiln.kernels.cpu.int8_packing import GROUP
from kiln.kernels.cpu.pair_kernel import PairBody, multiplies_pairs, pair_kernel, pair_tile, product_of
from kiln.kernels.cpu.runtime_product import multiply_pairs
from kiln.opinfo.attach import OpInfo
from kiln.tir.builder import (
    KernelAndBuffers,
    Machine,
    bind,
    chunks,
    int64,
    load,
    registers,
    serial,
    store,
    vector,
)
from kiln.tir.fused import Fused, Nest
from kiln.tir.symbols import ceil_div
from kiln.tir.vector_expr import ramp

_SCRATCH = 8 << 10  # bytes of widened rows of a task, where one tile of rows needs less; more was not faster
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


class _PairRows:
    """Gathered rows of 16-bit values, and the tiles of their matmul by the packed `weights`."""

    def __init__(
        self, product: IntegerProduct, slots: int, x: Any, weights: Any,
        finish: Callable[[Expr, Expr, Expr], None],
    ) -> None:  # fmt: skip
        self.product, self.x, self.weights, self.finish = product, x, weights, finish
        self.size = product.groups * GROUP
        self.memory = registers([slots * self.size], "int16")

    def gather(self, base: Expr, slot: Expr) -> None:
        """See gathered_loops.Rows."""
        widened_row(
            self.product, self.x, base, self.memory, slot * int64(self.size), 4 * self.product.tile.lanes
        )

    def tile(self, slots: Sequence[Expr], rows: Sequence[Expr], column: Expr, columns: int) -> None:
        """See gathered_loops.Rows."""
        product, tile = self.product, self.product.tile
        weights = product.first_group(column)
        starts = [bind(slot * int64(self.size)) for slot in slots]
        sums = _sums(product, self.memory, starts, self.weights, weights, columns)
        _store(sums, rows, column, columns, tile.lanes, self.finish)


def widened_row(product: IntegerProduct, x: Any, base: Expr, memory: Any, place: Expr, lanes: int) -> None:
    """Emit the copy of the row of x that begins at x[base] to memory[place], in 16 bits."""

    def copy(source: Expr, target: Expr, width: int) -> None:
        value = tirx.Cast(f"int16x{width}", load(x, [ramp(source, width)]))
        store(memory, [ramp(place + target, width)], value)

    copied_row(product.runs, base, lanes, copy)


def make(op: OpInfo, fused: Fused, anchor: Nest, last: Nest, machine: Machine) -> KernelAndBuffers:
    """Make the kernel of nests `anchor` to `last`; return it with the buffers of its parameters."""
    conv, greatest, shape = Convolution(op, fused, anchor), fused.ranges.greatest, last.buffer.shape
    most_rows = greatest(conv.rows)
    tile = pair_tile(machine, most_rows, conv.columns, machine.lanes("int32") // 2)
    product = product_of(conv, tile, machine)
    row_bytes = 2 * product.groups * GROUP
    loops = GatheredLoops.of(conv, tile, _SCRATCH // row_bytes, machine, conv.macs // (2 * tile.lanes))

    def emit(epilogue: Epilogue, x: Any, weights: Any, begin: Expr, end: Expr) -> None:
        def finish(row: Expr, column: Expr, value: Expr) -> None:
            epilogue.store(conv.result_indices(row, column, shape), value)

        loops.emit(_PairRows(product, loops.slots, x, weights, finish), begin, end)

    return pair_kernel("conv2d", PairBody(conv, product, loops.tasks, emit), fused, anchor, last)


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
        groups = [offset + int64(product.vector_offset(v)) for v in range(vectors)]
        right = [bind(tirx.Cast(f"int16x{width}", load(weights, [ramp(at, width)]))) for at in groups]
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
