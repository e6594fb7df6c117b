"""Products of 64 bits of two 32-bit numbers, on cores that multiply 32 by 32 bits into 32.

Such cores (Armv6-M) call a function of their compiler's library, which multiplies two 64-bit numbers.
Products of halves, in place, take two thirds of its instructions. With a = 2^16 a' + a'', the upper word of
a b is a' b' + (p >> 16) + ((a'' b' + p mod 2^16) >> 16), where p = a' b'' + (a'' b'' >> 16); no part
overflows.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from kiln.callbacks import structural_map
from kiln.tir.vector_expr import i32

_NARROW = ("int8", "uint8", "int16", "uint16", "int32")


def multiply_by_halves(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` in which int64 products of two numbers of at most 32 bits are sums of 32-bit products."""

    def on_product(found: Any) -> Any:
        left, right = _word(found.a), _word(found.b)
        if left is None or right is None or str(found.ty.dtype) != "int64":
            return found
        low = tirx.Cast("uint32", tirx.Mul(tirx.Cast("int64", left), tirx.Cast("int64", right)))
        upper = tirx.shift_left(tirx.Cast("int64", _upper(left, right)), tirx.const(32, "int64"))
        return tirx.bitwise_or(upper, tirx.Cast("int64", low))

    return structural_map(func, ((tirx.Mul, on_product),))


def _word(value: Any) -> Any:
    """The number of at most 32 bits that `value`, int64, was widened from, as int32; else None."""
    if not isinstance(value, tirx.Cast) or str(value.value.ty.dtype) not in _NARROW:
        return None
    source = value.value
    return source if str(source.ty.dtype) == "int32" else tirx.Cast("int32", source)


def _upper(left: Any, right: Any) -> Any:
    """The upper word of the product of two int32."""
    (left_high, left_low), (right_high, right_low) = _halves(left), _halves(right)
    lowest = tirx.Cast("uint32", left_low) * tirx.Cast("uint32", right_low)
    middle = left_high * right_low + tirx.Cast("int32", tirx.shift_right(lowest, tirx.const(16, "uint32")))
    cross_sum = left_low * right_high + tirx.bitwise_and(middle, i32(0xFFFF))
    return left_high * right_high + tirx.shift_right(middle, i32(16)) + tirx.shift_right(cross_sum, i32(16))


def _halves(value: Any) -> tuple[Any, Any]:
    return tirx.shift_right(value, i32(16)), tirx.bitwise_and(value, i32(0xFFFF))
