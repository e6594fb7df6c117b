"""int64 converted to float32 by instructions, on 32-bit processors that have one for int32 alone.

LLVM calls a function of the compiler's library there, one number at a time. With v = 2^24 a + b, where b is
from -2^23 to 2^23 - 1, both are float32 for |v| up to 2^47, and so 2^24 a + b is rounded once. A greater v is
divided by 2^16 first; the lowest bit of the quotient is set if bits are lost, which keeps the rounding
(rounding to odd: Boldo and Melquiond, "Emulation of a FMA and Correctly Rounded Sums", 2008). The result is
that of the library, bit for bit.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx

from kiln.callbacks import structural_map, structural_walk
from kiln.tir.shared_values import STATEMENTS, rewritten_statement
from kiln.tir.vector_expr import Let, cast, in_lanes, scalar, select

_EXACT = 47  # bits of a number that is converted at once
_DIVIDED = 16  # bits by which a greater one is divided


def convert_longs(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` without a conversion of int64 to float32."""

    def concerns(expr: Any) -> bool:
        def visit(node: Any) -> Any:
            return tvm_ffi.VisitInterrupt() if _is_from_long(node) else None

        return structural_walk(expr, ((tirx.Cast, visit),)) is not None

    def rewrite(let: Let, expr: Any) -> Any:
        def on_cast(node: Any) -> Any:
            return let(node.value, "long", lambda value: _real(let, value)) if _is_from_long(node) else node

        return structural_map(expr, ((tirx.Cast, on_cast),))

    rules = ((STATEMENTS, lambda statement: rewritten_statement(statement, concerns, rewrite)),)
    return func.with_body(structural_map(func.body, rules))


def _is_from_long(node: Any) -> bool:
    if isinstance(node.value, tirx.IntImm):
        return False
    return (scalar(node), scalar(node.value)) == ("float32", "int64")


def _real(let: Let, value: Any) -> Any:
    """The float32 nearest to `value`, an int64."""

    def number(number: int, dtype: str) -> Any:
        return in_lanes(tirx.const(number, dtype), value)

    top = cast("int32", tirx.shift_right(value, number(_EXACT, "int64")))
    far = tirx.NE(top, tirx.shift_right(top, number(31, "int32")))
    lost = cast("int32", tirx.bitwise_and(value, number((1 << _DIVIDED) - 1, "int64")))
    odd = cast("int64", tirx.min(lost, number(1, "int32")))
    quotient = tirx.bitwise_or(tirx.shift_right(value, number(_DIVIDED, "int64")), odd)

    def converted(near: Any) -> Any:
        upper = cast("int32", tirx.shift_right(near + number(1 << 23, "int64"), number(24, "int64")))
        return let(upper, "upper", lambda upper: whole(near, upper))

    def whole(near: Any, upper: Any) -> Any:
        lower = near - tirx.shift_left(cast("int64", upper), number(24, "int64"))
        parts = cast("float32", upper), cast("float32", cast("int32", lower))
        total = parts[0] * number(1 << 24, "float32") + parts[1]
        return total * select(far, number(1 << _DIVIDED, "float32"), number(1, "float32"))

    return let(select(far, quotient, value), "near", converted)
