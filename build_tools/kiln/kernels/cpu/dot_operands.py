"""Operands of the instructions of kernels/cpu/gemm_dot.py: words of bytes, pairs of halves, vectors."""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Expr

from kiln.kernels.cpu.dot_packing import BLOCK, QUAD
from kiln.tir.builder import bind, load
from kiln.tir.vector_expr import i32, ramp


def call(dtype: str, name: str, *operands: Expr) -> Expr:
    return tirx.call_llvm_pure_intrin(dtype, name, *operands)


def word_of(buffer: tirx.Buffer, offset: Expr, count: int = QUAD) -> Expr:
    """`count` elements of `buffer` from `offset`, four bytes, as an int32."""
    return bind(tirx.reinterpret("int32", load(buffer, [ramp(offset, count)])))


def extracted(word: Expr, odd: bool, signed: bool) -> Expr:
    """Two bytes of `word` as 16-bit halves: bytes 1 and 3 where `odd`, else 0 and 2."""
    if odd:  # LLVM makes one instruction of the rotation and the extraction
        bits = tirx.reinterpret("uint32", word)
        down = tirx.shift_right(bits, tirx.const(8, "uint32"))
        word = tirx.bitwise_or(tirx.reinterpret("int32", down), tirx.shift_left(word, i32(24)))
    return call("int32", "llvm.arm.sxtb16" if signed else "llvm.arm.uxtb16", word)


def widened(buffer: tirx.Buffer, offset: Expr) -> Expr:
    return tirx.Cast("int32", load(buffer, [offset]))


def halves_of(buffer: tirx.Buffer, first: Expr | None, second: Expr | None) -> Expr:
    """The elements of `buffer` at two positions as halves of a word; the half of None may hold anything."""
    low = None if first is None else widened(buffer, first)
    high = None if second is None else tirx.shift_left(widened(buffer, second), i32(16))
    if low is None or high is None:
        return bind(high if low is None else low)
    return bind(tirx.bitwise_or(tirx.bitwise_and(low, i32(0xFFFF)), high))


def pair_of(buffer: tirx.Buffer, first: Expr | None, second: Expr | None, adjacent: bool) -> Expr:
    """Two elements of 16 bits at two positions as halves of a word, as in `halves_of`."""
    return word_of(buffer, first, 2) if adjacent else halves_of(buffer, first, second)


def mask_of(length: int, lanes: int = BLOCK) -> Expr:
    return tirx.get_active_lane_mask(f"boolx{lanes}", i32(0), i32(length))


def halves_vector(buffer: tirx.Buffer, dtype: str, offset: Expr, length: int) -> Expr:
    """`length` elements of `buffer`, of `dtype`, from `offset` as 16-bit lanes, followed by zeros."""
    lanes = BLOCK // 2
    if length == lanes:
        return bind(tirx.Cast(f"int16x{lanes}", load(buffer, [ramp(offset, lanes)])))
    zeros = tirx.Broadcast(tirx.const(0, dtype), lanes)
    name = f"llvm.masked.load.v{lanes}i{dtype.removeprefix('int')}.p0"
    address = tirx.address_of(load(buffer, [offset]))
    values = call(f"{dtype}x{lanes}", name, address, mask_of(length, lanes), zeros)
    return bind(tirx.Cast(f"int16x{lanes}", values))


def vector_of(buffer: tirx.Buffer, offset: Expr, length: int) -> Expr:
    """`length` bytes of `buffer` from `offset`, followed by zeros."""
    if length == BLOCK:
        return bind(load(buffer, [ramp(offset, BLOCK)]))
    zeros = tirx.Broadcast(tirx.const(0, "int8"), BLOCK)
    address = tirx.address_of(load(buffer, [offset]))
    return bind(call(f"int8x{BLOCK}", "llvm.masked.load.v16i8.p0", address, mask_of(length), zeros))
