"""Operands of the methods of kernels/cpu/gemm_int8.py: how x and weights are loaded, and multiplied."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Expr

from kiln.kernels.cpu.int8_packing import GROUP, IntegerPacking
from kiln.kernels.cpu.runtime_product import dot_of_four, groups_of_vector
from kiln.tir.builder import bind, int64, load
from kiln.tir.vector_expr import ramp

_USDOT = "llvm.aarch64.neon.usdot.v4i32.v16i8"
# LLVM's intrinsics of method `sign`, by the number of sums in a vector.
_SIGN = {
    4: ("llvm.x86.ssse3.psign.b.128", "llvm.x86.ssse3.pmadd.ub.sw.128", "llvm.x86.sse2.pmadd.wd"),
    8: ("llvm.x86.avx2.psign.b", "llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd"),
}


def _call(dtype: str, name: str, *operands: Expr) -> Expr:
    return tirx.call_llvm_pure_intrin(dtype, name, *operands)


def vector_load(buffer: tirx.Buffer, offset: Expr, lanes: int) -> Expr:
    return load(buffer, [ramp(offset, lanes)])


class IntegerOperands(IntegerPacking):
    """Emits the loads and products of one group of k, or of the groups of one vector of x."""

    def lefts_of_vector(self, x: Any, offset: Expr, flip: Expr | None) -> list[list[Expr]]:
        """Load a vector of x, and return each of its groups as `left` does, where `selects_lane` holds."""
        values = vector_load(x, offset, GROUP * self.tile.lanes)
        values = values if flip is None else tirx.bitwise_xor(values, flip)
        return [[group] for group in groups_of_vector(values, self.tile.lanes)]

    def left(self, x: Any, offset: Expr, flip: Expr | None) -> list[Expr]:
        """Load four bytes of x into every lane, in the form that `multiply` expects.

        `flip`: the top bit of every byte, for an exclusive or. If it were a constant, LLVM would flip the
        four bytes before broadcasting them: three instructions instead of one.
        """
        lanes = self.tile.lanes
        if self.method == "mull":  # two pairs of bytes, each in every lane
            if self.arm32:  # no vectors of 32 bits, but loads that broadcast
                pairs = [
                    tirx.reinterpret("int16", vector_load(x, offset + int64(2 * i), 2)) for i in range(2)
                ]
            else:
                four = bind(tirx.reinterpret("int16x2", vector_load(x, offset, GROUP)))
                pairs = [tirx.Shuffle([four], [tirx.IntImm("int32", i)]) for i in range(2)]
            repeated = [tirx.reinterpret("int8x8", tirx.Broadcast(pair, 4)) for pair in pairs]
            return [bind(item if flip is None else tirx.bitwise_xor(item, flip)) for item in repeated]
        if self.method == "dot":  # two pairs of 16 bits, each in every lane
            pairs = bind(tirx.reinterpret("int32x2", tirx.Cast("int16x4", vector_load(x, offset, GROUP))))
            words = [tirx.Broadcast(tirx.Shuffle([pairs], [tirx.IntImm("int32", i)]), 4) for i in range(2)]
            return [bind(tirx.reinterpret("int16x8", word)) for word in words]
        four = tirx.reinterpret("int32", vector_load(x, offset, GROUP))
        wide = tirx.Broadcast(four, lanes)
        if flip is not None:
            wide = tirx.bitwise_xor(wide, tirx.reinterpret(f"int32x{lanes}", flip))
        left_bytes = bind(tirx.reinterpret(f"int8x{GROUP * lanes}", wide))
        return [left_bytes, bind(tirx.abs(left_bytes))] if self.method == "sign" else [left_bytes]

    def right(self, weights: Any, offset: Expr) -> list[Expr]:
        """Load the weights of one group and one vector of columns."""
        if self.arrangement == "halves":
            return [bind(vector_load(weights, offset + int64(half * 8), 8)) for half in range(2)]
        return self.split(bind(vector_load(weights, offset, GROUP * self.tile.lanes)))

    def split(self, values: Expr) -> list[Expr]:
        """The weights of one group and vector of columns, a vector of int8, as `multiply` expects them."""
        if self.method in ("mull", "dot"):
            pairs = bind(tirx.reinterpret("int16x8", values))
            lanes = [[tirx.IntImm("int32", lane) for lane in range(first, 8, 2)] for first in range(2)]
            halves = [tirx.reinterpret("int8x8", tirx.Shuffle([pairs], half)) for half in lanes]
            return [bind(tirx.Cast("int16x8", half) if self.method == "dot" else half) for half in halves]
        return [values]

    def multiply(self, sums: Expr, left: list[Expr], right: list[Expr]) -> Expr:
        """`sums` plus the four products of one group in each lane; operands from `left` and `right`."""
        lanes = self.tile.lanes
        int32, int16, int8 = f"int32x{lanes}", f"int16x{2 * lanes}", f"int8x{4 * lanes}"
        if self.method == "vnni":
            return _call(int32, f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", sums, left[0], right[0])
        if self.method == "usmmla":
            return _call(int32, _USDOT, sums, left[0], right[0])
        if self.method in ("sdot", "smmla"):
            return dot_of_four(sums, right[0], left[0], lanes)
        if self.method == "mull":
            smull = "llvm.arm.neon.vmulls.v8i16" if self.arm32 else "llvm.aarch64.neon.smull.v8i16"
            products = [_call(int16, smull, right[half], left[half]) for half in range(2)]
            for pairs in products if self.wide else [products[0] + products[1]]:
                if self.arm32:
                    sums = _call(int32, "llvm.arm.neon.vpadals.v4i32.v8i16", sums, pairs)
                else:
                    sums = sums + _call(int32, "llvm.aarch64.neon.saddlp.v4i32.v8i16", pairs)
            return sums
        if self.method == "dot":
            for half in range(2):
                sums = sums + _call(int32, "llvm.wasm.dot", left[half], right[half])
            return sums
        sign, multiply_bytes, add_pairs = _SIGN[lanes]
        signed = _call(int8, sign, right[0], left[0])
        pairs = _call(int16, multiply_bytes, left[1], signed)
        return sums + _call(int32, add_pairs, pairs, tirx.Broadcast(tirx.const(1, "int16"), 2 * lanes))
