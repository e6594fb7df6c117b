"""Sigmoid, tanh and layer norm of the gates of an integer LSTM, exactly as LiteRT's kernel computes them.

Gates are int16 with 12 bits after the point, results have 15. exp(-x) is a polynomial on a quarter of a unit
(a table, unless x is finer than a gate) times a constant for each further bit of x; 1 / (1 + exp(-x)) comes
from Newton's method. All products are rounded to 15 bits, ties upwards. Numbers are held as int32; each
`each` is one value of an element, which kernels compute into a register where it is read more than once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.ir import Expr

from kiln.arrays import Array
from kiln.frontend.tflite.fixed_point import Factor, divided, high_product, i32, limited, times

_ONE = (1 << 15) - 1
_TABLE, _TABLE_BITS = 1024, 3  # the length of the table of exponentials, and the bits before the point
_HALF, _EIGHTH, _QUARTER_OF_UNIT = 1 << 14, 1 << 12, 1 << 13
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


def exponentials() -> Array:
    """exp(x) with 15 bits after the point of the 1024 numbers from -1/4 to 0 with 3 of 16 bits before it.

    The numbers with more bits before the point are a part of these. A look-up takes three instructions, the
    polynomial about 40.
    """
    numbers = np.arange(_TABLE) - _TABLE
    return np.asarray(_of_quarter(numbers, _TABLE_BITS, lambda f, *x, name: f(*x)), "int16")


def _exp(below: Any, bits: int, table: Any) -> Any:
    """exp(x) with 15 bits after the point of int16 x < 0 with `bits` before the point; unspecified for 0.

    below: -1 - x, int32. table: from `exponentials`.
    """
    after = 15 - bits
    quarter = 1 << (after - 2)
    places = each(lambda v: ~v & i32(quarter - 1), below, name="places")
    if bits < _TABLE_BITS:
        result = _of_quarter(each(lambda v: v - i32(quarter), places, name="lowest"), bits)
    else:
        at_place = functools.partial(_looked_up, table, bits - _TABLE_BITS)
        result = each(at_place, places, name="exp")
    for number, power in enumerate(EXP_POWERS[: bits + 2]):
        result = each(_power_of(after - 2 + number, _short(power)), result, below, name="exp")
    if bits > 5:  # below -32
        most = 1 << (20 - bits)
        result = each(lambda v, u: tirx.Select(u >= i32(most), i32(0), v), result, below, name="exp")
    return result


def _looked_up(table: Any, shift: int, place: Expr) -> Expr:
    """The value of a table at place * 2^shift, as int32."""
    return tirx.Cast("int32", table(tirx.Cast("int64", place << i32(shift) if shift else place)))


def _power_of(bit: int, power: int) -> Callable[..., Expr]:
    """The product with `power` where the multiple of a quarter in `below` has the bit.

    round(v p / 2^15) is v less (v (2^15 - p) + 2^14 - 1) / 2^15, rounded down: so the number that is 0
    elsewhere is a constant under a mask of the bit's sign, and the constant that is added fits no instruction
    and is kept in a register, for instructions that multiply and add.
    """

    def element(value: Expr, below: Expr) -> Expr:
        has_bit = (below << i32(31 - bit)) >> i32(31)
        return value - ((value * (has_bit & i32((1 << 15) - power)) + i32(_HALF - 1)) >> i32(15))

    return element


def _inverse(exp: Any) -> Any:
    """2 / (1 + exp) with 13 bits after the point; constants are added before the shifts."""
    half = each(lambda v: (v + i32(1 << 15)) >> i32(1), exp, name="half")
    first = (_short(NEWTON) << 15) + _HALF
    x = each(lambda v: (v * i32(_short(NEWTON_SLOPE)) + i32(first)) >> i32(15), half, name="inverse")
    above = _HALF - (_QUARTER_OF_UNIT << 15)
    for _ in range(3):
        error = each(lambda h, v: (h * v + i32(above)) >> i32(15), half, x, name="error")
        x = each(lambda v, e: v - (((v * e + i32(_HALF - 1)) >> i32(15)) << i32(2)), x, error, name="inverse")
    return x


def _below(x: Any) -> Any:
    """|x| - 1."""
    return each(lambda v: tirx.max(v, -v) - i32(1), x, name="below")


def _unless_zero(x: Expr) -> Expr:
    """A mask: 0 for 0, else -1."""
    return (x | -x) >> i32(31)


def sigmoid(x: Any, table: Any) -> Any:
    """The sigmoid of gates; `table`: from `exponentials`."""
    inverse = _inverse(_exp(_below(x), 3, table))

    def element(v: Expr, source: Expr) -> Expr:
        result = (v << i32(1)) ^ ((source >> i32(31)) & i32(_ONE))
        return ((result - i32(_HALF)) & _unless_zero(source)) + i32(_HALF)

    return each(element, inverse, x, name="sigmoid")


def tanh(x: Any, table: Any, bits: int) -> Any:
    """The tanh of int16 with `bits` before the point, 0 to 6; `table`: from `exponentials`."""
    inverse = _inverse(_exp(_below(x), bits + 1, table))

    def element(v: Expr, source: Expr) -> Expr:
        size = tirx.min((v - i32(_QUARTER_OF_UNIT)) << i32(2), i32(_ONE)) & _unless_zero(source)
        return (size ^ (source >> i32(31))) - (source >> i32(31))

    return each(element, inverse, x, name="tanh")


_MEAN = 10  # bits after the point of a mean
_SQUARE = 2 * _MEAN  # bits after the point of a variance
_HALF_SQRT_2 = 1518500250  # with 31 bits after the point


def _wide(x: Expr | int) -> Expr:
    return tirx.IntImm("int64", x) if isinstance(x, int) else tirx.Cast("int64", x)


_FIRST = tirx.IntImm("int64", 0)


def _of_rows(function: Callable[..., Expr], *tensors: Any, name: str = "value") -> Any:
    """The tensor [rows, 1] of `function` of the elements of tensors of that shape."""
    return te.compute(
        (tensors[0].shape[0], 1), lambda row, _: function(*(one(row, _FIRST) for one in tensors)), name=name
    )


def _total(x: Any, function: Callable[[Expr], Expr], name: str) -> Any:
    """The sums [rows, 1] of `function` of the elements, in 64 bits."""
    column = te.reduce_axis((0, x.shape[1]), name="column")
    return te.compute(
        (x.shape[0], 1), lambda row, _: te.sum(function(_wide(x(row, column))), axis=column), name=name
    )


def mean(x: Any) -> Any:
    """The means [rows, 1] of int16 [rows, columns], with 10 bits after the point, rounded towards zero."""
    size, one = int(x.shape[1]), _wide(1 << _MEAN)

    def element(total: Expr) -> Expr:
        return tirx.Cast("int32", tirx.truncdiv(total * one, _wide(size)))

    return _of_rows(element, _total(x, lambda v: v, "total"), name="mean")


def variance(x: Any, means: Any, least: int) -> Any:
    """The variances [rows, 1] of int16 [rows, columns]; `least` in place of a variance below 1."""
    share = (1 << _SQUARE) // int(x.shape[1])

    def element(total: Expr, middle: Expr) -> Expr:
        difference = total * _wide(share) - _wide(middle) * _wide(middle)
        return tirx.Cast("int32", tirx.truncdiv(difference, _wide(1 << _SQUARE)))

    variance = _of_rows(element, _total(x, lambda v: v * v, "squares"), means, name="variance")
    return _of_rows(lambda v: _chosen((v - i32(1)) >> i32(31), i32(least), v), variance, name="bounded")


def _chosen(mask: Expr, yes: Expr, no: Expr) -> Expr:
    """`yes` where the bits of `mask` are set, `no` where they are 0; both operands are computed."""
    return (yes & mask) | (no & ~mask)


def _in_range(variances: Any) -> tuple[Any, Any]:
    """Each variance times the power of 4 that makes it 2^27 to 2^29, and the shift for its inverse root.

    The shift to the right undoes the factor in 1 / sqrt(variance).
    """

    def is_large(v: Expr) -> Expr:
        return tirx.Cast("int32", v >= i32(1 << 29))

    scaled = _of_rows(lambda v: v >> (is_large(v) * i32(2)), variances, name="scaled")
    shift = _of_rows(lambda v: i32(11) + is_large(v), variances, name="shift")
    for bits in (16, 8, 4, 2):
        more = _of_rows(_room(bits), scaled, name="more")
        shift = _of_rows(lambda s, m: s - (m >> i32(1)), shift, more, name="shift")
        scaled = _of_rows(lambda v, m: v << m, scaled, more, name="scaled")
    return scaled, shift


def _room(bits: int) -> Callable[[Expr], Expr]:
    """A function of a number: `bits` if the number, shifted to the left by them, stays below 2^29; else 0."""
    return lambda v: tirx.Cast("int32", v < i32(1 << (29 - bits))) * i32(bits)


def inverse_deviation(variances: Any) -> Any:
    """2^s / sqrt(variance) by Newton's method, int32 [rows, 1], where s is from `deviation_shift`."""
    scaled, shift = _in_range(variances)
    half = _of_rows(lambda v: divided(v >> i32(1), 1), scaled, name="half")
    x = _of_rows(lambda _: i32(1 << 28), scaled, name="newton")
    for _ in range(5):
        cube = _of_rows(lambda v: high_product(high_product(v, v), v) << i32(6), x, name="cube")
        x = _of_rows(
            lambda v, c, h: (high_product(i32(3 << 27), v) - high_product(h, c)) << i32(3), x, cube, half,
            name="newton",
        )  # fmt: skip

    def element(root: Expr, right: Expr, source: Expr) -> Expr:
        whole = high_product(root, i32(_HALF_SQRT_2)) << tirx.max(-right, i32(0))
        return _chosen(_is_one(source), i32((1 << 31) - 1), whole)

    return _of_rows(element, x, shift, variances, name="inverse")


def deviation_shift(variances: Any) -> Any:
    """The shift to the right, int32 [rows, 1], for products with the results of `inverse_deviation`."""
    _, shift = _in_range(variances)
    return _of_rows(lambda s, v: tirx.max(s, i32(0)) & ~_is_one(v), shift, variances, name="right")


def _is_one(variance_of_row: Expr) -> Expr:
    """A mask: -1 for a variance of 1, whose inverse is a constant; else 0."""
    return (variance_of_row - i32(2)) >> i32(31)


def normed(
    x: Any, means: Any, inverse: Any, right: Any, weights: Any, bias: Any, *, factor: Factor
) -> Any:  # fmt: skip
    """The sums `x` of a gate after its layer norm, int16 [rows, columns].

    inverse, right: from `inverse_deviation` and `deviation_shift`. factor: the scale of the weights in units
    of the result.
    """

    def element(row: Expr, column: Expr) -> Expr:
        difference = (tirx.Cast("int32", x(row, column)) << i32(_MEAN)) - means(row, _FIRST)
        scaled = divided(high_product(difference, inverse(row, _FIRST)), right(row, _FIRST))
        total = _wide(scaled) * _wide(weights(column)) + _wide(bias(column))
        rounded = (total + _wide(1 << (_MEAN - 1)) + (total >> _wide(63))) >> _wide(_MEAN)
        return limited(times(tirx.Cast("int32", rounded), factor), "int16")

    return te.compute(x.shape, element, name="normed")
