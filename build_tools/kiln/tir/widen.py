"""16-bit floats, loaded as their bits, as float32: by an instruction where the processor has one."""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Expr

from kiln.tir.vector_expr import cast, reinterpreted, select


def widened(bits: Expr, kind: str, by_instruction: bool) -> Expr:
    """The float32 of the uint16 `bits` of a finite number of type `kind`, float16 or bfloat16."""
    if kind == "bfloat16":
        return reinterpreted(cast("uint32", bits) << _u32(16), "float32")
    if by_instruction:
        return cast("float32", reinterpreted(bits, "float16"))
    wide = cast("uint32", bits)
    # The exponent's bias grows by 112. A subnormal float16 has exponent 0: 2^-14 is added by the exponent,
    # and subtracted as a float, so that no operand is a subnormal float32, which some processors flush.
    moved = ((wide & _u32(0x7FFF)) << _u32(13)) + _u32(112 << 23)
    small = reinterpreted(moved + _u32(1 << 23), "float32") - tirx.const(2.0**-14, "float32")
    is_small = tirx.EQ(wide & _u32(0x7C00), _u32(0))
    size = select(is_small, reinterpreted(small, "uint32"), moved)
    return reinterpreted(size | ((wide & _u32(0x8000)) << _u32(16)), "float32")


def _u32(value: int) -> Expr:
    return tirx.const(value, "uint32")
