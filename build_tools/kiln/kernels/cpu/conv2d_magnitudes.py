"""The matmul of conv2d.py on 8-bit integers, with x as magnitudes and signs, for x86 without VNNI.

Computation  sum[row][column] += x[row][k] * w[k][column], int8 or uint8 by int8, in int32. pmaddubsw
             multiplies |x| by w or, where x is negative, by ~w = -w - 1: one exclusive or with the sign. This
             is less than x * w by |x|, in all columns alike, so the sums of a row begin with the sum of |x|
             over its negative x. pmaddwd by ones then adds two of the 16-bit sums. Weights of 7 bits are
             multiplied by x as it is, which is 1.15 times as fast.
Packing      As in gemm_int8.py, arrangement "groups". Of uint8, x - 128 is used, and panels have a head;
             with weights of 7 bits, of int8 x + 128. Rows of x are gathered in scratch memory, a few tiles at
             a time, in the order of the packed weights: magnitudes, then signs (-1 or 0).
Schedule     Four magnitudes and four signs of a row, each broadcast, times four weights of each column.
             Weights are read again for each part of the rows.
Applies      int8 weights and int32 sums, one group, runs of at least four bytes. Four instructions for four
             products a lane, as with the pairs of 16 bits of conv2d_widened.py; but weights are read as they
             are stored, half as many bytes, and only products occupy the ports of multiplications. On Zen 4
             (AVX2) 0.78 to 0.95 of the time of pairs.
Accuracy     Exact: two products in 16 bits are at least 2 * 128 * -128 and at most 2 * 128 * 127; with 7 bits
             their magnitude is at most 2 * 255 * 64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tvm import tirx
from tvm.ir import Expr

from kiln.kernels.cpu import conv2d_pairs
from kiln.kernels.cpu.convolution import Convolution
from kiln.kernels.cpu.epilogue import Epilogue
from kiln.kernels.cpu.gathered_loops import GatheredLoops, copied_row
from kiln.kernels.cpu.gemm_int8 import SEVEN_BITS, WHOLE, IntegerProduct, merged
from kiln.kernels.cpu.gemm_tile import Tile, fitted
from kiln.kernels.cpu.int8_operands import vector_load
from kiln.kernels.cpu.int8_packing import GROUP
from kiln.kernels.cpu.output_tile import OutputTile
from kiln.kernels.cpu.pair_kernel import PairBody, pair_kernel
from kiln.opinfo.attach import OpInfo
from kiln.tir.builder import KernelAndBuffers, Machine, bind, chunks, int64, load, registers, serial, store
from kiln.tir.fused import Fused, Nest
from kiln.tir.symbols import ceil_div
from kiln.tir.vector_expr import ramp

_SCRATCH = 16 << 10  # bytes of gathered rows of a task, where one tile of rows needs less
# With fewer vectors of columns, or fewer bytes in a row, gathering the rows takes too long.
_LEAST, _LEAST_OF_SEVEN_BITS = (4, 64), (2, 32)


class _Instructions(NamedTuple):
    """LLVM's names of the instructions, for vectors of one size."""

    multiply_bytes: str
    add_pairs: str
    sum_bytes: str


# By the number of sums in a vector.
_INSTRUCTIONS = {
    4: _Instructions("llvm.x86.ssse3.pmadd.ub.sw.128", "llvm.x86.sse2.pmadd.wd", "llvm.x86.sse2.psad.bw"),
    8: _Instructions("llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd", "llvm.x86.avx2.psad.bw"),
    16: _Instructions(
        "llvm.x86.avx512.pmaddubs.w.512", "llvm.x86.avx512.pmaddw.d.512", "llvm.x86.avx512.psad.bw.512"
    ),
}

applies = conv2d_pairs.applies


def pays(op: OpInfo, fused: Fused, anchor: Nest, machine: Machine) -> bool:
    """Whether the machine has the instructions and none better, and can read the weights as packed."""
    if machine.isa not in ("sse4", "avx2", "avx512") or machine.dot != "none":
        return False
    conv, lanes, packing = Convolution(op, fused, anchor), machine.lanes("int32"), machine.packing
    if packing is not None:
        if packing.arrangement != "groups" or packing.columns % lanes:
            return False
        if _shift(fused) and packing.head_lanes < lanes:
            return False
    least_vectors, least_bytes = _LEAST_OF_SEVEN_BITS if _of_seven_bits(fused) else _LEAST
    runs = merged(conv.loops())
    row_bytes = conv.terms // runs[-1].extent * ceil_div(runs[-1].extent, GROUP) * GROUP
    large = ceil_div(conv.columns, lanes) >= least_vectors and row_bytes >= least_bytes
    return large and fused.ranges.greatest(conv.rows) > 1


def _of_seven_bits(fused: Fused) -> bool:
    """Whether the products of x by two weights fit 16 bits, whatever x is."""
    return fused.magnitudes.get(fused.params[1], WHOLE) <= SEVEN_BITS


def _shift(fused: Fused) -> int:
    """The number added to x: uint8 is multiplied by weights of 7 bits, int8 as magnitudes and signs."""
    wanted = "uint8" if _of_seven_bits(fused) else "int8"
    return 0 if str(fused.params[0].dtype) == wanted else 128 if wanted == "uint8" else -128


def _tile(machine: Machine, rows: int, columns: int) -> Tile:
    """The register tile: its sums leave registers for weights, magnitudes, signs, ones and products."""
    lanes = machine.lanes("int32")
    sums, most = (20, 4) if machine.registers >= 32 else (8, 2)
    vectors = min(most, ceil_div(columns, lanes))
    tile = Tile(min(sums // vectors, rows), vectors, lanes)
    return tile if machine.packing is None else fitted(tile, machine.packing.columns, columns)


def _product_of(conv: Convolution, tile: Tile, machine: Machine, fused: Fused) -> IntegerProduct:
    """The matmul of `conv`, with panels that have a head where x or another variant needs it."""
    shift, x_type = _shift(fused), str(fused.params[0].dtype)
    if machine.packing is not None:
        head_lanes = machine.packing.head_lanes
    else:
        head_lanes = tile.lanes if shift or x_type in machine.heads else 0
    method = "bytes" if _of_seven_bits(fused) else "magnitudes"
    undone = 128 if x_type == "int8" else -128
    return IntegerProduct(method, False, tile, merged(conv.loops()), shift, head_lanes, undone, "groups")


def make(op: OpInfo, fused: Fused, anchor: Nest, last: Nest, machine: Machine) -> KernelAndBuffers:
    """Make the kernel of nests `anchor` to `last`; return it with the buffers of its parameters."""
    conv, shape = Convolution(op, fused, anchor), last.buffer.shape
    tile = _tile(machine, fused.ranges.greatest(conv.rows), conv.columns)
    product = _product_of(conv, tile, machine, fused)
    steps = conv.macs // (2 * tile.lanes)
    loops = GatheredLoops.of(conv, tile, _SCRATCH // _row_bytes(product), machine, steps)

    def emit(epilogue: Epilogue, x: Any, weights: Any, begin: Expr, end: Expr) -> None:
        def finish(row: Expr, column: Expr, value: Expr) -> None:
            epilogue.store(conv.result_indices(row, column, shape), value)

        loops.emit(_Rows(product, loops.slots, x, weights, finish), begin, end)

    return pair_kernel("conv2d", PairBody(conv, product, loops.tasks, emit), fused, anchor, last)


def _row_bytes(product: IntegerProduct) -> int:
    """Bytes of a gathered row: those of x, or magnitudes, then signs, each in whole vectors."""
    if product.method == "bytes":
        return product.groups * GROUP
    vector = GROUP * product.tile.lanes
    return 2 * ceil_div(product.groups * GROUP, vector) * vector


class _Rows:
    """Gathered rows, as they are or as magnitudes and signs, and the tiles of their matmul by `weights`.

    `x`: int8 or uint8, flat. `finish(row, column, value)` stores a sum.
    """

    def __init__(
        self, product: IntegerProduct, slots: int, x: Any, weights: Any,
        finish: Callable[[Expr, Expr, Expr], None],
    ) -> None:  # fmt: skip
        self.product, self.x, self.weights, self.finish = product, x, weights, finish
        self.lanes, self.vector = product.tile.lanes, GROUP * product.tile.lanes
        self.instructions = _INSTRUCTIONS[self.lanes]
        self.size = _row_bytes(product)
        self.memory = registers([slots * self.size], "int8")
        self.split = product.method == "magnitudes"
        if self.split:
            self.negatives = registers([slots], "int32")  # by slot, the sum of |x| over negative x

    def gather(self, base: Expr, slot: Expr) -> None:
        """See gathered_loops.Rows."""
        place, half, split = bind(slot * int64(self.size)), self.size // 2, self.split

        def copy(source: Expr, target: Expr, width: int) -> None:
            value = load(self.x, [ramp(source, width)])
            if self.product.shift:
                top = tirx.const(-128 if str(self.x.dtype) == "int8" else 128, str(self.x.dtype))
                value = tirx.bitwise_xor(value, tirx.Broadcast(top, width))
            value, to = bind(tirx.reinterpret(f"int8x{width}", value)), bind(place + target)
            if not split:
                store(self.memory, [ramp(to, width)], value)
                return
            zero = tirx.Broadcast(tirx.const(0, "int8"), width)
            sign = bind(tirx.Select(value < zero, tirx.Broadcast(tirx.const(-1, "int8"), width), zero))
            store(self.memory, [ramp(to, width)], tirx.bitwise_xor(value, sign) - sign)
            store(self.memory, [ramp(to + int64(half), width)], sign)

        copied_row(self.product.runs, base, self.vector, copy)
        if split:
            self._sum_negatives(slot, place)

    def _sum_negatives(self, slot: Expr, place: Expr) -> None:
        """Emit the sum of the magnitudes of a row's negative values; fills up its last vector with zeros."""
        filled = self.product.groups * GROUP
        for offset, width in chunks(self.size // 2 - filled, self.vector):
            rest = tirx.Broadcast(tirx.const(0, "int8"), width)
            store(self.memory, [ramp(place + int64(filled + offset), width)], rest)
        half, lanes, int64s = self.size // 2, self.lanes // 2, f"int64x{self.lanes // 2}"
        sums, each = registers([lanes], "int64"), [ramp(int64(0), lanes)]
        zeros = tirx.Broadcast(tirx.const(0, "int8"), self.vector)
        store(sums, each, tirx.Broadcast(tirx.const(0, "int64"), lanes))
        with serial(half // self.vector) as number:
            at = bind(place + number * int64(self.vector))
            magnitudes, signs = (
                vector_load(self.memory, at + int64(offset), self.vector) for offset in (0, half)
            )
            negative = tirx.bitwise_and(magnitudes, signs)
            added = tirx.call_llvm_pure_intrin(int64s, self.instructions.sum_bytes, negative, zeros)
            store(sums, each, load(sums, each) + added)
        total = sum((load(sums, [int64(lane)]) for lane in range(1, lanes)), load(sums, [int64(0)]))
        store(self.negatives, [slot], tirx.Cast("int32", total))

    def tile(self, slots: Sequence[Expr], rows: Sequence[Expr], column: Expr, columns: int) -> None:
        """See gathered_loops.Rows."""
        product, lanes, each = self.product, self.lanes, [ramp(int64(0), self.lanes)]
        weights, group_bytes = product.first_group(column), GROUP * product.tile.columns
        vectors = ceil_div(columns, lanes)
        totals = [[registers([lanes], "int32") for _ in range(vectors)] for _ in slots]
        for v in range(vectors):
            head = None
            if product.shift:
                at = weights + int64(product.vector_offset(v) - group_bytes)
                head = bind(tirx.reinterpret(f"int32x{lanes}", vector_load(self.weights, at, self.vector)))
            for slot, row_sums in zip(slots, totals, strict=True):
                before = load(self.negatives, [slot]) if self.split else tirx.const(0, "int32")
                first = tirx.Broadcast(before, lanes)
                store(row_sums[v], each, first if head is None else first + head)
        starts = [bind(slot * int64(self.size)) for slot in slots]
        with serial(product.groups) as number:
            offset = bind(weights + number * int64(group_bytes))
            right = [
                bind(vector_load(self.weights, offset + int64(product.vector_offset(v)), self.vector))
                for v in range(vectors)
            ]
            for start, row_sums in zip(starts, totals, strict=True):
                at = start + number * int64(GROUP)
                magnitudes = self._four(at)
                signs = self._four(at + int64(self.size // 2)) if self.split else None
                for sums, columns_of_vector in zip(row_sums, right, strict=True):
                    products = self._products(magnitudes, signs, columns_of_vector)
                    store(sums, each, load(sums, each) + products)
        out = OutputTile(rows, column, columns, self.finish)
        for row, row_sums in zip(rows, totals, strict=True):
            self._store(out, row, row_sums)

    def _store(self, out: OutputTile, row: Expr, sums: Sequence[Any]) -> None:
        """Emit the stores of a row; `sums`: by vector, the buffer that holds them."""
        out.store(row, self.lanes, lambda v, offset, lane: load(sums[v], [int64(offset) + lane]))

    def _four(self, offset: Expr) -> Expr:
        """Four gathered bytes, in every lane."""
        four = tirx.reinterpret("int32", vector_load(self.memory, offset, GROUP))
        return bind(tirx.reinterpret(f"int8x{self.vector}", tirx.Broadcast(four, self.lanes)))

    def _products(self, magnitudes: Expr, signs: Expr | None, weights: Expr) -> Expr:
        """The sums of four products in each lane; `signs` None: of x as it is."""
        int32, int16 = f"int32x{self.lanes}", f"int16x{2 * self.lanes}"
        signed = weights if signs is None else tirx.bitwise_xor(weights, signs)
        pairs = tirx.call_llvm_pure_intrin(int16, self.instructions.multiply_bytes, magnitudes, signed)
        ones = tirx.Broadcast(tirx.const(1, "int16"), 2 * self.lanes)
        return tirx.call_llvm_pure_intrin(int32, self.instructions.add_pairs, pairs, ones)
