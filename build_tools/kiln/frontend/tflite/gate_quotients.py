"""2 / (1 + exp(-x)), from which sigmoid and tanh of integer LSTMs follow, as LiteRT's kernel computes it.

exp(-x) is a polynomial on a quarter of a unit times a constant for each further bit of x, and the quotient
comes from Newton's method; all products are rounded to 15 bits, ties upwards. That takes about 60
instructions; a look-up in a table of all quotients, which has 19 KiB, takes 15. The quotients differ from the
exact ones by up to 3 levels of 2^-13, without order: so the table has a straight line for each 512 numbers,
and for each number its distance from the line in 4 bits. From 9.25 on the quotient is 2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.ir import Expr

from kiln.arrays import Array
from kiln.frontend.tflite.fixed_point import divided, i32

TABLE_BITS = 3  # before the point of the numbers of the table, which has 12 after it
_LINE = 9  # numbers on a line, as a power of two
_LINES = 74
_SHARE, _SHARES = 4, 2  # bits of a distance, and distances in an element as a power of two
_HALF, _EIGHTH = 1 << 14, 1 << 12
UNIT = 1 << 13  # 1 with 13 bits after the point
# exp(-2^k) of k from -2 on, exp(-1/8) and 1/3, with 31 bits after the point; 48/17 and -32/17 with 29.
EXP_POWERS = (1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242)
EXP_OF_EIGHTH, THIRD = 1895147668, 715827883
NEWTON, NEWTON_SLOPE = 1515870810, -1010580540


def each(function: Callable[..., Expr], *tensors: Any, name: str = "value") -> Any:
    """The tensor of `function` of the elements of tensors of one shape."""
    return te.compute(tensors[0].shape, lambda *at: function(*(one(*at) for one in tensors)), name=name)


def _short(value: int) -> int:
    """A constant with 31 bits after the point as one with 15, rounded."""
    return (value + (1 << 15)) >> 16


def _product(a: Expr, b: Expr | int) -> Expr:
    """round(a b / 2^15), ties upwards."""
    return (a * b + _HALF) >> 15


def _of_quarter(lowest: Any, bits: int, apply: Callable[..., Any] = each) -> Any:
    """exp(lowest) with 15 fractional bits.

    `lowest`: 16-bit fixed-point numbers from -1/4 to 0 with `bits` integer bits.

    apply: calls its first argument with the elements of the others: `each`, or a function of numpy's arrays.
    """
    x = apply(lambda v: (v << bits) + _EIGHTH, lowest, name="around")
    x2 = apply(lambda v: _product(v, v), x, name="square")
    thirds = apply(
        lambda v, v2: _product(divided(_product(v2, v2), 2) + _product(v2, v), _short(THIRD)) + v2,
        x, x2, name="thirds",
    )  # fmt: skip
    at_eighth = _short(EXP_OF_EIGHTH)
    return apply(lambda v, rest: at_eighth + _product(v + divided(rest, 1), at_eighth), x, thirds, name="exp")


def exp_below(below: Any, bits: int, apply: Callable[..., Any] = each) -> Any:
    """exp(x) with 15 bits after the point of int16 x < 0 with `bits`, 1 to 4, before it; unspecified for 0.

    below: -1 - x, int32. apply: as in `_of_quarter`.
    """
    after = 15 - bits
    quarter = 1 << (after - 2)
    lowest = apply(lambda v: (~v & (quarter - 1)) - quarter, below, name="lowest")
    result = _of_quarter(lowest, bits, apply)
    for number, power in enumerate(EXP_POWERS[: bits + 2]):
        result = apply(_power_of(after - 2 + number, _short(power)), result, below, name="exp")
    return result


def _power_of(bit: int, power: int) -> Callable[..., Any]:
    """The product with `power` where the multiple of a quarter in `below` has the bit.

    round(v p / 2^15) is v less (v (2^15 - p) + 2^14 - 1) / 2^15, rounded down: so the number that is 0
    elsewhere is a constant under a mask of the bit's sign, and the constant that is added fits no instruction
    and is kept in a register, for instructions that multiply and add.
    """

    def element(value: Any, below: Any) -> Any:
        has_bit = (below << (31 - bit)) >> 31
        return value - ((value * (has_bit & ((1 << 15) - power)) + (_HALF - 1)) >> 15)

    return element


def quotients(exp: Any, apply: Callable[..., Any] = each) -> Any:
    """2 / (1 + exp) with 13 bits after the point; constants are added before the shifts.

    exp: with 15 bits after the point. apply: as in `_of_quarter`.
    """
    half = apply(lambda v: (v + (1 << 15)) >> 1, exp, name="half")
    first = (_short(NEWTON) << 15) + _HALF
    x = apply(lambda v: (v * _short(NEWTON_SLOPE) + first) >> 15, half, name="inverse")
    above = _HALF - (UNIT << 15)
    for _ in range(3):
        error = apply(lambda h, v: (h * v + above) >> 15, half, x, name="error")
        x = apply(lambda v, e: v - (((v * e + (_HALF - 1)) >> 15) << 2), x, error, name="inverse")
    return x


def table() -> Array:
    """The quotients of 0 to 9.25 in steps of 2^-12, int16: first and slope of each line, then the distances.

    The quotient of 0 is 1. Of numbers of 8 and more only every second one has a quotient of its own, as
    numbers of int16 with 4 bits before the point have no others.
    """

    def apply(function: Callable[..., Any], *tensors: Array, name: str) -> Array:
        return np.asarray(function(*tensors))

    below = np.arange(1 << 15, dtype="int32")
    count = _LINES << _LINE
    fine, coarse = (quotients(exp_below(below, bits, apply), apply) for bits in (TABLE_BITS, TABLE_BITS + 1))
    values = np.concatenate([[UNIT], fine, coarse[np.arange(1 << 15, count - 1) // 2]])
    ends = np.arange(0, count + 1, 1 << _LINE) / 4096
    exact = np.round(2 * UNIT / (1 + np.exp(-ends))).astype("int64")
    first, slope = exact[:-1] - (1 << (_SHARE - 1)), np.diff(exact)
    steps = np.arange(1 << _LINE)
    lines = first[:, None] + ((slope[:, None] * steps) >> _LINE)
    shares = (values - lines.reshape(-1)).reshape(-1, 1 << _SHARES)
    if (
        shares.min() < 0 or shares.max() >= 1 << _SHARE
    ):  # not expected: the constants above are for these bits
        raise ValueError(f"distances from {shares.min()} to {shares.max()} do not fit {_SHARE} bits")
    words = (shares << (_SHARE * np.arange(1 << _SHARES))).sum(1).astype("uint16").view("int16")
    return np.concatenate([first, slope, words]).astype("int16")


def looked_up(x: Any, shift: int, quotients_of: Any) -> Any:
    """The quotients of |x| * 2^shift for numbers of 12 bits after the point; `quotients_of`: from `table`."""

    def at(place: Expr) -> Expr:
        return tirx.Cast("int32", quotients_of(tirx.Cast("int64", place)))

    def place_of(v: Expr) -> Expr:
        place = tirx.max(v, -v)
        return tirx.min(place << i32(shift), i32((_LINES << _LINE) - 1)) if shift else place

    def element(place: Expr) -> Expr:
        line, step = place >> i32(_LINE), place & i32((1 << _LINE) - 1)
        on_line = at(line) + ((at(line + i32(_LINES)) * step) >> i32(_LINE))
        word = at((place >> i32(_SHARES)) + i32(2 * _LINES))
        right = (place & i32((1 << _SHARES) - 1)) << i32(2)
        return on_line + ((word >> right) & i32((1 << _SHARE) - 1))

    return each(element, each(place_of, x, name="place"), name="quotient")
