"""Trigonometric, hyperbolic and inverse functions as float32 polynomials.

Range reductions and coefficients are those of the Cephes library's single-precision functions (S. Moshier,
1992). Outside of its domain, a function is NaN. Relative errors are below 5e-7 in the tests' ranges.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import tirx
from tvm.ir import Expr

from kiln.tir.vector_expr import Let, f32, polynomial, select

Function = Callable[[Let, Expr], Expr]
# Those that TVM does not vectorise by itself.
NAMES = ("acos", "acosh", "asin", "asinh", "atan", "atanh")


def _signed(x: Expr, size: Expr) -> Expr:
    """`size` with the sign of x."""
    return select(x < f32(0.0), f32(0.0) - size, size)


def atan(let: Let, x: Expr) -> Expr:
    """Arc tangent: pi / 2 - atan(1 / x) and pi / 4 + atan((x - 1) / (x + 1)) reduce x to tan(pi / 8)."""
    terms = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)

    def reduced(x: Expr, a: Expr) -> Expr:
        large, middle = a > f32(2.414213562373095), a > f32(0.4142135623730950)
        ratio = select(
            large, f32(-1.0) / a, select(middle, (a - f32(1.0)) / (a + f32(1.0)), a)
        )  # fmt: skip
        start = select(large, f32(math.pi / 2), select(middle, f32(math.pi / 4), f32(0.0)))

        def value(r: Expr) -> Expr:
            square = r * r
            return _signed(x, start + (polynomial(square, terms) * square * r + r))

        return let(ratio, "r", value)

    return let(x, "x", lambda x: let(tirx.abs(x), "a", lambda a: reduced(x, a)))


def _arc(a: Expr, square: Expr) -> Expr:
    """asin(a) for 0 <= a <= 1 / 2; `square` is a * a."""
    terms = (4.2163199048e-2, 2.4181311049e-2, 4.5470025998e-2, 7.4953002686e-2, 1.6666752422e-1)
    return polynomial(square, terms) * square * a + a


def _folded(let: Let, x: Expr, near: Callable[[Expr, Expr, Expr], Expr]) -> Expr:
    """near(x, whether |x| > 1/2, the arc of |x|, or of sqrt((1 - |x|) / 2) where |x| > 1/2)."""

    def parts(x: Expr, a: Expr) -> Expr:
        far = a > f32(0.5)
        square = select(far, (f32(1.0) - a) * f32(0.5), a * a)

        def arc(s: Expr) -> Expr:
            return let(
                select(far, tirx.sqrt(s), a),
                "y",
                lambda y: let(_arc(y, s), "arc", lambda arc: near(x, far, arc)),
            )

        return let(square, "s", arc)

    return let(x, "x", lambda x: let(tirx.abs(x), "a", lambda a: parts(x, a)))


def asin(let: Let, x: Expr) -> Expr:
    """Arc sine; asin(a) = pi / 2 - 2 asin(sqrt((1 - a) / 2)) where a = |x| > 1 / 2."""
    return _folded(
        let,
        x,
        lambda x, far, arc: _signed(x, select(far, f32(math.pi / 2) - (arc + arc), arc)),
    )


def acos(let: Let, x: Expr) -> Expr:
    """Arc cosine: 2 asin(sqrt((1 - a) / 2)) where a = |x| > 1 / 2, which is pi less that for x < 0."""

    def near(x: Expr, far: Expr, arc: Expr) -> Expr:
        double = arc + arc
        beyond = select(x < f32(0.0), f32(math.pi) - double, double)
        return select(far, beyond, f32(math.pi / 2) - _signed(x, arc))

    return _folded(let, x, near)


def sinh(let: Let, x: Expr, exp: Function) -> Expr:
    """Hyperbolic sine: a polynomial for |x| <= 1, else (e^|x| - e^-|x|) / 2, with e^|x| = (e^(|x| / 2))^2."""
    terms = (2.03721912945e-4, 8.33028376239e-3, 1.66667160211e-1)

    def value(x: Expr, a: Expr, h: Expr) -> Expr:
        square = x * x
        small = polynomial(square, terms) * square * x + x
        large = h * f32(0.5) * h - f32(0.5) / (h * h)
        return select(a > f32(1.0), _signed(x, large), small)

    def sized(x: Expr, a: Expr) -> Expr:
        return let(exp(let, a * f32(0.5)), "h", lambda h: value(x, a, h))

    return let(x, "x", lambda x: let(tirx.abs(x), "a", lambda a: sized(x, a)))


def cosh(let: Let, x: Expr, exp: Function) -> Expr:
    """Hyperbolic cosine: (e^|x| + e^-|x|) / 2, with e^|x| = (e^(|x| / 2))^2."""
    return let(
        exp(let, tirx.abs(x) * f32(0.5)), "h", lambda h: h * f32(0.5) * h + f32(0.5) / (h * h)
    )  # fmt: skip


def asinh(let: Let, x: Expr, log: Function) -> Expr:
    """Inverse hyperbolic sine: a polynomial for |x| <= 1/2, else log(|x| + sqrt(x^2 + 1))."""
    terms = (2.0122003309e-2, -4.2699340972e-2, 7.4847586088e-2, -1.6666288134e-1)

    def value(x: Expr, a: Expr) -> Expr:
        square = x * x
        small = polynomial(square, terms) * square * x + x
        huge = a > f32(1e10)  # a * a would overflow
        inner = select(huge, a, a + tirx.sqrt(square + f32(1.0)))
        large = log(let, inner) + select(huge, f32(math.log(2.0)), f32(0.0))
        return select(a > f32(0.5), _signed(x, large), small)

    return let(x, "x", lambda x: let(tirx.abs(x), "a", lambda a: value(x, a)))


def acosh(let: Let, x: Expr, log: Function) -> Expr:
    """Inverse hyperbolic cosine of x >= 1: a polynomial below 3/2, else log(x + sqrt(x^2 - 1))."""
    terms = (1.7596881071e-3, -7.5272886713e-3, 2.6454905019e-2, -1.1784741703e-1, 1.4142135263)

    def value(x: Expr) -> Expr:
        above = x - f32(1.0)
        small = polynomial(above, terms) * tirx.sqrt(above)
        huge = x > f32(1e10)
        inner = select(huge, x, x + tirx.sqrt(tirx.max(above, f32(0.0)) * (x + f32(1.0))))
        large = log(let, inner) + select(huge, f32(math.log(2.0)), f32(0.0))
        return select(x > f32(1.5), large, small)

    return let(x, "x", value)


def atanh(let: Let, x: Expr, log: Function) -> Expr:
    """Inverse hyperbolic tangent: a polynomial for |x| <= 1/2, else log((1 + |x|) / (1 - |x|)) / 2."""
    terms = (1.81740078349e-1, 8.24370301058e-2, 1.46691431730e-1, 1.99782164500e-1, 3.33337300303e-1)

    def value(x: Expr, a: Expr) -> Expr:
        square = x * x
        small = polynomial(square, terms) * square * x + x
        large = f32(0.5) * log(let, (f32(1.0) + a) / (f32(1.0) - a))
        beyond = select(a > f32(1.0), f32(math.nan), f32(math.inf))
        edge = select(a < f32(1.0), large, beyond)
        return select(a > f32(0.5), _signed(x, edge), small)

    return let(x, "x", lambda x: let(tirx.abs(x), "a", lambda a: value(x, a)))
