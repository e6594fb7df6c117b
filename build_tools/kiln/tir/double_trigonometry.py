"""Trigonometric, hyperbolic and inverse functions of float64, erf and powers, without a library.

Series with remainders below 1e-17 after a range reduction. Relative errors are a few units of 2**-53; of a
power, 2**-53 (1 + |exponent log x|). Outside of its domain, a function is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import tirx
from tvm.ir import Expr

from kiln.tir.double_math import exp, log, series
from kiln.tir.double_rounding import floor, nearest_even, trunc
from kiln.tir.real_power import FloatFunctions, real_power
from kiln.tir.vector_expr import Let, f64, select

_QUARTER = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21)  # pi / 2, in parts of 33 bits
_SINES = [(-1.0) ** k / math.factorial(2 * k + 1) for k in range(8, -1, -1)]
_COSINES = [(-1.0) ** k / math.factorial(2 * k) for k in range(9, -1, -1)]
_SINH = [1.0 / math.factorial(2 * k + 1) for k in range(8, -1, -1)]
_ARC = [(-1.0) ** k / (2 * k + 1) for k in range(21, -1, -1)]
_SERIES_END = 3.0  # erf: a series up to it, a continued fraction beyond
_FRACTIONS = 24


def _signed(x: Expr, size: Expr) -> Expr:
    """`size` with the sign of x."""
    return select(x < f64(0.0), f64(0.0) - size, size)


def _turned(let: Let, x: Expr, chosen: Callable[[Expr, Expr, Expr], Expr]) -> Expr:
    """chosen(sin r, cos r, quarter), where x = r + n pi / 2, |r| <= pi / 4, and quarter is n modulo 4.

    From |x| = 1.6e6 on, the error of r grows as 2**-53 |x|. An infinite x gives NaN.
    """

    def rest(x: Expr, n: Expr) -> Expr:
        remainder = x
        for quarter_part in _QUARTER:
            remainder = remainder - n * f64(quarter_part)
        quarter = n - f64(4.0) * floor(let, n * f64(0.25))
        return let(remainder, "r", lambda r: let(quarter, "q", lambda q: value(r, q)))

    def value(r: Expr, q: Expr) -> Expr:
        def both(square: Expr) -> Expr:
            return chosen(r * series(square, _SINES), series(square, _COSINES), q)

        return let(r * r, "square", both)

    return let(x, "x", lambda x: let(nearest_even(let, x * f64(2.0 / math.pi)), "n", lambda n: rest(x, n)))


def _is_odd(quarter: Expr) -> Expr:
    return tirx.abs(tirx.abs(quarter - f64(2.0)) - f64(1.0)) < f64(0.5)


def sin(let: Let, x: Expr) -> Expr:
    """sin x."""

    def chosen(sine: Expr, cosine: Expr, quarter: Expr) -> Expr:
        value = select(_is_odd(quarter), cosine, sine)
        return select(quarter > f64(1.5), f64(0.0) - value, value)

    return _turned(let, x, chosen)


def cos(let: Let, x: Expr) -> Expr:
    """cos x."""

    def chosen(sine: Expr, cosine: Expr, quarter: Expr) -> Expr:
        value = select(_is_odd(quarter), sine, cosine)
        return select(tirx.abs(quarter - f64(1.5)) < f64(1.0), f64(0.0) - value, value)

    return _turned(let, x, chosen)


def tan(let: Let, x: Expr) -> Expr:
    """tan x: sin r / cos r, or -cos r / sin r after an odd number of quarters."""

    def chosen(sine: Expr, cosine: Expr, quarter: Expr) -> Expr:
        odd = _is_odd(quarter)
        return select(odd, f64(0.0) - cosine, sine) / select(odd, sine, cosine)

    return _turned(let, x, chosen)


def atan(let: Let, x: Expr) -> Expr:
    """Arc tangent: pi / 2 - atan(1 / x) and pi / 4 + atan((x - 1) / (x + 1)) reduce x to tan(pi / 8)."""

    def reduced(x: Expr, a: Expr) -> Expr:
        large, middle = a > f64(1.0 + math.sqrt(2.0)), a > f64(math.sqrt(2.0) - 1.0)
        ratio = select(large, f64(-1.0) / a, select(middle, (a - f64(1.0)) / (a + f64(1.0)), a))
        start = select(large, f64(math.pi / 2), select(middle, f64(math.pi / 4), f64(0.0)))
        return let(ratio, "r", lambda r: _signed(x, start + r * series(r * r, _ARC)))

    return let(x, "x", lambda x: let(tirx.abs(x), "a", lambda a: reduced(x, a)))


def asin(let: Let, x: Expr) -> Expr:
    """Arc sine: atan(x / sqrt(1 - x^2))."""
    return let(x, "x", lambda x: atan(let, x / tirx.sqrt((f64(1.0) - x) * (f64(1.0) + x))))


def acos(let: Let, x: Expr) -> Expr:
    """Arc cosine: 2 atan(sqrt((1 - x) / (1 + x)))."""
    return let(x, "x", lambda x: f64(2.0) * atan(let, tirx.sqrt((f64(1.0) - x) / (f64(1.0) + x))))


def log1p(let: Let, x: Expr) -> Expr:
    """log(1 + x): log(w) x / (w - 1) with w = 1 + x rounded; x itself where w is 1."""

    def value(x: Expr, w: Expr) -> Expr:
        moved = w - f64(1.0)
        small = tirx.abs(moved) < f64(1e-20)
        large = tirx.abs(x) > f64(1e15)  # x / (w - 1) of an infinity is none
        ratio = select(large, f64(1.0), x / select(small, f64(1.0), moved))
        return select(small, x, log(let, w) * ratio)

    return let(x, "x", lambda x: let(f64(1.0) + x, "w", lambda w: value(x, w)))


def sinh(let: Let, x: Expr) -> Expr:
    """Hyperbolic sine: a series for |x| <= 1, else (e^|x| - e^-|x|) / 2, with e^|x| = (e^(|x| / 2))^2."""

    def value(x: Expr, h: Expr) -> Expr:
        small = x * series(x * x, _SINH)
        return select(
            tirx.abs(x) > f64(1.0), _signed(x, h * f64(0.5) * h - f64(0.5) / (h * h)), small
        )  # fmt: skip

    return let(x, "x", lambda x: let(exp(let, tirx.abs(x) * f64(0.5)), "h", lambda h: value(x, h)))


def cosh(let: Let, x: Expr) -> Expr:
    """Hyperbolic cosine: (e^|x| + e^-|x|) / 2, with e^|x| = (e^(|x| / 2))^2."""
    return let(
        exp(let, tirx.abs(x) * f64(0.5)), "h", lambda h: h * f64(0.5) * h + f64(0.5) / (h * h)
    )  # fmt: skip


def _logarithm(let: Let, a: Expr, above: Expr) -> Expr:
    """log(1 + above); log(a) + log 2 where a is so large that `above` may overflow."""
    huge = a > f64(1e100)
    near = log1p(let, select(huge, f64(1.0), above))
    return select(huge, log(let, a) + f64(math.log(2.0)), near)


def asinh(let: Let, x: Expr) -> Expr:
    """Inverse hyperbolic sine: log(1 + |x| + x^2 / (1 + sqrt(1 + x^2)))."""

    def value(x: Expr, a: Expr) -> Expr:
        square = a * a
        return _signed(x, _logarithm(let, a, a + square / (f64(1.0) + tirx.sqrt(f64(1.0) + square))))

    return let(x, "x", lambda x: let(tirx.abs(x), "a", lambda a: value(x, a)))


def acosh(let: Let, x: Expr) -> Expr:
    """Inverse hyperbolic cosine of x >= 1: log(1 + t + sqrt(t) sqrt(t + 2)) with t = x - 1."""

    def value(x: Expr, t: Expr) -> Expr:
        return _logarithm(let, x, t + tirx.sqrt(t) * tirx.sqrt(t + f64(2.0)))  # NaN also below -1

    return let(x, "x", lambda x: let(x - f64(1.0), "t", lambda t: value(x, t)))


def atanh(let: Let, x: Expr) -> Expr:
    """Inverse hyperbolic tangent: log(1 + 2 |x| / (1 - |x|)) / 2."""

    def value(x: Expr, a: Expr) -> Expr:
        inside = f64(0.5) * log1p(let, (a + a) / (f64(1.0) - a))
        edge = select(a > f64(1.0), f64(math.nan), f64(math.inf))
        return _signed(x, select(a >= f64(1.0), edge, inside))

    return let(x, "x", lambda x: let(tirx.abs(x), "a", lambda a: value(x, a)))


def erf(let: Let, x: Expr) -> Expr:
    """erf x: 2 x / sqrt(pi) e^-x^2 times a series of positive terms; for large |x| a continued fraction."""
    terms, term = [1.0], 1.0
    for k in range(1, 55):
        term *= 2.0 / (2 * k + 1)
        terms.insert(0, term)

    def value(x: Expr, a: Expr, square: Expr, decay: Expr) -> Expr:
        near = a * f64(2.0 / math.sqrt(math.pi)) * decay * series(square, terms)
        tail = a
        for k in range(_FRACTIONS, 0, -1):
            tail = a + f64(k * 0.5) / tail
        far = f64(1.0) - decay / (tail * f64(math.sqrt(math.pi)))
        return _signed(x, select(a > f64(_SERIES_END), far, near))

    def squared(x: Expr, a: Expr) -> Expr:
        square = tirx.min(a * a, f64(60.0))
        return let(
            square, "square", lambda s: let(exp(let, f64(0.0) - s), "decay", lambda d: value(x, a, s, d))
        )

    return let(x, "x", lambda x: let(tirx.abs(x), "a", lambda a: squared(x, a)))


def power(let: Let, x: Expr, y: Expr) -> Expr:
    """x^y; see `real_power`."""
    return real_power(let, x, y, FloatFunctions(f64, exp, log, trunc))


UNARY: dict[str, Callable[[Let, Expr], Expr]] = {
    "acos": acos,
    "acosh": acosh,
    "asin": asin,
    "asinh": asinh,
    "atan": atan,
    "atanh": atanh,
    "cos": cos,
    "cosh": cosh,
    "erf": erf,
    "log1p": log1p,
    "sin": sin,
    "sinh": sinh,
    "tan": tan,
}
