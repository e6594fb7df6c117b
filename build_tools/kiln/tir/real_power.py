"""x^y in floats of 32 or 64 bits, from e^x, log x and truncation in that width."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx
from tvm.ir import Expr

from kiln.tir.vector_expr import Let, select


@dataclass(frozen=True)
class FloatFunctions:
    """Functions of one type of floats; `number` makes a constant, `least` is the least normal number."""

    number: Callable[[float], Expr]
    exp: Callable[[Let, Expr], Expr]
    log: Callable[[Let, Expr], Expr]
    trunc: Callable[[Let, Expr], Expr]
    least: float


def real_power(let: Let, x: Expr, y: Expr, floats: FloatFunctions) -> Expr:
    """x^y as e^(y log |x|), with the sign, NaN, 0 and infinity that x^y has for x <= 0; 1 for y = 0."""
    number, trunc = floats.number, floats.trunc

    def sized(x: Expr, y: Expr) -> Expr:
        size = floats.exp(let, y * floats.log(let, tirx.max(tirx.abs(x), number(floats.least))))
        return let(size, "size", lambda size: signed(x, y, size))

    def signed(x: Expr, y: Expr, size: Expr) -> Expr:
        half = y * number(0.5)
        odd_or_even = select(tirx.EQ(trunc(let, half), half), size, number(0.0) - size)
        below = select(tirx.EQ(trunc(let, y), y), odd_or_even, number(math.nan))
        at_zero = select(y > number(0.0), number(0.0), number(math.inf))
        of_other_base = select(x > number(0.0), size, select(x < number(0.0), below, at_zero))
        return select(tirx.abs(y) > number(0.0), of_other_base, number(1.0))

    return let(x, "x", lambda x: let(y, "y", lambda y: sized(x, y)))
