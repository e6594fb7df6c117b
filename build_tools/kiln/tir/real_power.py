"""x^y in floats of 32 or 64 bits, from e^x, log x and truncation in that width."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx
from tvm.ir import Expr

from kiln.tir.vector_expr import Let, in_lanes, select


@dataclass(frozen=True)
class FloatFunctions:
    """Functions of one type of floats; `number` makes a constant."""

    number: Callable[[float], Expr]
    exp: Callable[[Let, Expr], Expr]
    log: Callable[[Let, Expr], Expr]
    trunc: Callable[[Let, Expr], Expr]


def real_power(let: Let, x: Expr, y: Expr, floats: FloatFunctions) -> Expr:
    """x^y as e^(y log |x|), with the sign, NaN, 0 and infinity that x^y has for x <= 0; 1 for y = 0.

    NaN where an operand is, but for x = 1 and y = 0. The sign of x = -0 does not count.
    """
    number, trunc = floats.number, floats.trunc

    def sized(x: Expr, y: Expr) -> Expr:
        size = floats.exp(let, y * floats.log(let, tirx.abs(x)))
        of_one = tirx.EQ(tirx.abs(x), in_lanes(number(1.0), x))  # of any y, also an infinite one
        return let(select(of_one, number(1.0), size), "size", lambda size: signed(x, y, size))

    def signed(x: Expr, y: Expr, size: Expr) -> Expr:
        half = y * number(0.5)
        odd_or_even = select(tirx.EQ(trunc(let, half), half), size, number(0.0) - size)
        broken = select(x > number(-math.inf), number(math.nan), size)
        below = select(tirx.EQ(trunc(let, y), y), odd_or_even, broken)
        at_zero = tirx.abs(x) + tirx.max(number(0.0), y * number(-math.inf))  # NaN where x or y is
        of_other_base = select(x > number(0.0), size, select(x < number(0.0), below, at_zero))
        return select(tirx.abs(y) <= number(0.0), number(1.0), of_other_base)

    return let(x, "x", lambda x: let(y, "y", lambda y: sized(x, y)))
