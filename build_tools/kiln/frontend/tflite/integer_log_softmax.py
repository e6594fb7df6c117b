"""LOG_SOFTMAX of int8 and uint8 in the integers of LiteRT's reference kernel, the same bit for bit.

Distances from the greatest level of a line have 26 bits after the point. Their exponentials are a table, made
here as that kernel computes them: a polynomial within a quarter, times a constant for each further bit. The
logarithm of their sum, which has 19 bits, comes from log(x) = log(2) n + 2 atanh((r - 1) / (r + 1)) by a
quotient of polynomials.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.ir import Expr

from kiln.arrays import Array
from kiln.frontend.tflite.fixed_point import divided, factor_of, high_product, i32, limited, times
from kiln.frontend.tflite.gate_quotients import EXP_OF_EIGHTH, EXP_POWERS, THIRD, each
from kiln.frontend.tflite.integer_quotients import doubled, inverse_of_half, sign_bits
from kiln.frontend.tflite.operands import Grid, TfliteOperands, const

op = relax.op
_RESULTS = {"int8": Grid(16 / 256, 127, "int8"), "uint8": Grid(16 / 256, 255, "uint8")}
_MOST = 1 << 12  # terms of a sum
_BITS, _SUM_BITS = 26, 19  # after the point of a distance and of a sum of exponentials
_ONE = (1 << 31) - 1
_LEAST = -(1 << 30)  # a distance for which every result is the least level
# With 31 bits after the point: log(2), sqrt(sqrt(1/2)), sqrt(1/2); and with s = sqrt(sqrt(2)): 11/240 s,
# s / 20, 2 / s - s, s / 4.
_LOG_2, _FOURTH_ROOT, _ROOT = 1488522236, 1805811301, 1518500250
_ALPHA_N, _ALPHA_D, _ALPHA_I, _ALPHA_F = 117049297, 127690142, 1057819769, 638450708


def _product(a: Array | int, b: Array | int) -> Array:
    """round(a b / 2^31), ties upwards."""
    product: Any = np.asarray(a, "int64") * b + (1 << 30)
    return np.asarray(product >> 31)


def _shifted(a: Array, bits: int) -> Array:
    """a / 2^bits, ties away from zero."""
    return np.asarray((a + (1 << (bits - 1)) + (a >> 63)) >> bits)


def _exponentials(x: Array) -> Array:
    """exp(x), with 31 bits after the point, of x <= 0 with 26."""
    quarter = 1 << (_BITS - 2)
    lowest = (x & (quarter - 1)) - quarter
    near = (lowest << (31 - _BITS)) + (1 << 28)
    square = _product(near, near)
    fourth = _shifted(_product(square, square), 2)
    thirds = _product(fourth + _product(square, near), THIRD) + square
    result = EXP_OF_EIGHTH + _product(near + _shifted(thirds, 1), EXP_OF_EIGHTH)
    for number, power in enumerate(EXP_POWERS):
        is_set = (lowest - x) & (1 << (_BITS - 2 + number))
        result = np.where(is_set, _product(result, power), result)
    return np.asarray(np.where(x == 0, _ONE, result))


def _logarithm(sums: Any) -> Any:
    """log(x) with 26 bits after the point of sums [rows, 1] x >= 1 with 19.

    x is 2^n r: the root of 1/2 is nearer to r than 1/2 and 1 are.
    """
    free, lower = sign_bits(sums), each(lambda v: high_product(v, i32(_ROOT)), sums, name="lower")
    room = sign_bits(lower)
    high = each(lambda v, f: doubled(high_product(v << f, i32(_ROOT))), sums, free, name="high")
    low = each(lambda v, f: v << f, sums, room, name="low")  # negative beyond 31 bits
    low = each(lambda v: (v & ~(v >> i32(31))) | (i32(_ONE) & (v >> i32(31))), low, name="low")
    r = each(lambda a, b: tirx.min(a, b), high, low, name="r")

    def power(f: Expr, g: Expr) -> Expr:
        """n with 25 bits after the point."""
        quarter = i32(1 << 23)
        return tirx.max(((i32(11) - f) << i32(25)) + quarter, ((i32(12) - g) << i32(25)) - quarter)

    p = each(lambda v: (v >> i32(1)) + i32((_FOURTH_ROOT + 1) >> 1), r, name="p")
    q = each(lambda v: (v - i32(_FOURTH_ROOT)) << i32(1), r, name="q")
    square = each(lambda v: high_product(v, v), q, name="square")
    numerator = each(
        lambda v, s, w: high_product(v, w) + high_product(high_product(v, s), i32(_ALPHA_N)),
        q, square, r, name="numerator",
    )  # fmt: skip
    denominator = each(
        lambda w, v, s: (
            high_product(w, i32(_ALPHA_I) + v + high_product(i32(_ALPHA_D), s))
            + high_product(i32(_ALPHA_F), v)
        ),
        p, q, square, name="denominator",
    )  # fmt: skip
    inverse = inverse_of_half(each(lambda v: (v >> i32(1)) + i32(1 << 30), denominator, name="half"))

    def total(n: Expr, above: Expr, below: Expr) -> Expr:
        return (high_product(n, i32(_LOG_2)) + high_product(divided(above, 6), below)) << i32(1)

    return each(total, each(power, free, room, name="power"), numerator, inverse, name="logarithm")


def log_softmax(node: TfliteOperands) -> Any:
    """LOG_SOFTMAX of int8 and uint8; TVM converts other types. None for scales that have no such kernel."""
    source, result = node.grid(0), node.result_grid()
    if source is None or result is None or result != _RESULTS.get(source.dtype):
        return None
    shape = node.shape(0)
    if shape[-1] > _MOST:
        return None
    factor = factor_of(min(float(np.float32(source.scale)) * 2**_BITS, 2.0**31 - 1))
    if factor.shift < 1:
        return None
    farthest = (31 << _BITS) >> factor.shift  # beyond it a level counts as infinitely far
    distances = np.minimum(np.arange(256, dtype="int64"), farthest)
    exponentials = _exponentials(_product(-distances << factor.shift, factor.multiplier))
    exponentials = np.where(np.arange(256) > farthest, 0, _shifted(exponentials, 31 - _SUM_BITS))

    x = node.raw(0)
    greatest = node.bind(op.max(x, -1, keepdims=True))

    def looked_up(levels: Any, most: Any, table: Any) -> Any:
        far = _distance(levels, most)
        return te.compute(levels.shape, lambda *at: table(tirx.Cast("int64", far(*at))), name="exp")

    def compute(levels: Any, most: Any, logarithms: Any) -> Any:
        far = _distance(levels, most)

        def element(*at: Expr) -> Expr:
            near = tirx.max(times(-tirx.min(far(*at), i32(farthest)), factor), i32(_LEAST))
            beyond = tirx.Cast("int32", far(*at) > i32(farthest)) * i32(_LEAST)
            distance = tirx.max(near + beyond, i32(_LEAST))
            difference = distance - logarithms(*_of_line(at))
            return limited(divided(difference, _BITS - 4) + i32(result.zero), result.dtype)

        return te.compute(levels.shape, element, name="log_softmax")

    shares = node.emit_te(looked_up, x, greatest, const(exponentials, "int32"), name="exp")
    sums = node.bind(op.sum(shares, -1, keepdims=True))
    return node.emit_te(
        compute, x, greatest, node.emit_te(_logarithm, sums, name="logarithm"), name="log_softmax"
    )


def _of_line(at: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The place of a line's number in a tensor [..., 1]."""
    return (*at[:-1], tirx.IntImm("int64", 0))


def _distance(levels: Any, greatest: Any) -> Callable[..., Expr]:
    """The greatest element of a line minus the element, for each element of the line."""
    return lambda *at: tirx.Cast("int32", greatest(*_of_line(at))) - tirx.Cast("int32", levels(*at))


CONVERTERS: dict[str, Callable[[TfliteOperands], Any]] = {"LOG_SOFTMAX": log_softmax}
