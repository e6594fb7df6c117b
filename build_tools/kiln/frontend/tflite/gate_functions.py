"""Sigmoid, tanh and layer norm of the gates of an integer LSTM, exactly as LiteRT's kernel computes them.

Gates are int16 with 12 bits after the point, results have 15. Both functions are look-ups in one table
(`gate_quotients.py`), unless x is finer than a gate. Numbers are held as int32; each `each` is one value of
an element, which kernels compute into a register where it is read more than once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import te, tirx
from tvm.ir import Expr

from kiln.frontend.tflite.fixed_point import Factor, divided, high_product, i32, limited, times
from kiln.frontend.tflite.gate_quotients import TABLE_BITS, UNIT, each, exp_below, looked_up, quotients

_ONE = (1 << 15) - 1


def _below(x: Any) -> Any:
    """|x| - 1."""
    return each(lambda v: tirx.max(v, -v) - i32(1), x, name="below")


def _unless_zero(x: Expr) -> Expr:
    """A mask: 0 for 0, else -1."""
    return (x | -x) >> i32(31)


def sigmoid(x: Any, table: Any) -> Any:
    """The sigmoid of gates; `table`: from `gate_quotients.table`."""
    inverse = looked_up(x, 0, table)
    return each(lambda v, u: (v << i32(1)) ^ ((u >> i32(31)) & i32(_ONE)), inverse, x, name="sigmoid")


def tanh(x: Any, table: Any, bits: int) -> Any:
    """The tanh of int16 with `bits` before the point, 0 to 6; `table`: from `gate_quotients.table`."""
    finer = bits + 1 < TABLE_BITS
    if finer:
        inverse = quotients(exp_below(_below(x), bits + 1))
    else:
        inverse = looked_up(x, bits + 1 - TABLE_BITS, table)

    def element(v: Expr, source: Expr) -> Expr:
        size = tirx.min((v - i32(UNIT)) << i32(2), i32(_ONE))
        size = size & _unless_zero(source) if finer else size  # the table's element of 0 is exact
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
