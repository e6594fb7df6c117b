"""float64 rounded to integers without a library; 32-bit processors and RISC-V have no instruction for it.

Adding 2^52 to a magnitude below it, and subtracting it, drops the fraction, ties to even. Greater numbers are
integers, and they, infinities and NaN stay as they are. The sign is that of the number, for zeros too.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm.ir import Expr

from kiln.tir.vector_expr import Let, f64, i64, reinterpreted, select

_SIGN = -(1 << 63)
_WHOLE = 0x4330000000000000  # the bits of 2^52


def _of_size(let: Let, x: Expr, rounded: Callable[[Expr, Expr], Expr]) -> Expr:
    """rounded(|x|, |x| to nearest) with the sign of x, for numbers that may have a fraction; else x."""

    def body(x: Expr) -> Expr:
        size = reinterpreted(reinterpreted(x, "int64") & i64(~_SIGN), "float64")
        return let(size, "size", lambda size: let(nearest(size), "near", lambda near: signed(x, size, near)))

    def nearest(size: Expr) -> Expr:
        # The second 2^52 is written as bits, since TVM 0.27 simplifies (x + c) - c to x for floats too.
        return (size + f64(2.0**52)) - reinterpreted(i64(_WHOLE), "float64")

    def signed(x: Expr, size: Expr, near: Expr) -> Expr:
        sign = reinterpreted(x, "int64") & i64(_SIGN)
        value = reinterpreted(reinterpreted(rounded(size, near), "int64") | sign, "float64")
        return select(size < f64(2.0**52), value, x)

    return let(x, "x", body)


def nearest_even(let: Let, x: Expr) -> Expr:
    """The nearest integer, ties to even."""
    return _of_size(let, x, lambda _, near: near)


def trunc(let: Let, x: Expr) -> Expr:
    """x rounded towards zero."""
    return _of_size(let, x, lambda size, near: near - select(near > size, f64(1.0), f64(0.0)))


def nearest_away(let: Let, x: Expr) -> Expr:
    """The nearest integer, ties away from zero."""
    return _of_size(let, x, lambda size, near: near + select(size - near >= f64(0.5), f64(1.0), f64(0.0)))


def floor(let: Let, x: Expr) -> Expr:
    """The greatest integer that is not above x."""

    def below(x: Expr, near: Expr) -> Expr:
        return near - select(near > x, f64(1.0), f64(0.0))

    return let(x, "x", lambda x: let(nearest_even(let, x), "near", lambda near: below(x, near)))


def ceil(let: Let, x: Expr) -> Expr:
    """The least integer that is not below x: -floor(-x), by products that keep the signs of zeros."""
    return floor(let, x * f64(-1.0)) * f64(-1.0)


UNARY: dict[str, Callable[[Let, Expr], Expr]] = {
    "floor": floor,
    "ceil": ceil,
    "trunc": trunc,
    "round": nearest_away,
    "nearbyint": nearest_even,
}
