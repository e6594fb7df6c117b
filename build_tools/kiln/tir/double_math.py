"""Mathematical functions of float64 without a library, for models that ask for that type.

Series with remainders below 1e-17 after a range reduction; relative errors are a few units of 2**-53.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tvm import tirx
from tvm.ir import Expr

from kiln.tir import double_rounding
from kiln.tir.vector_expr import Let, cast, f64, i64, reinterpreted, select


def series(x: Expr, coefficients: Sequence[float]) -> Expr:
    """The polynomial with `coefficients`, highest power first."""
    result = f64(coefficients[0])
    for coefficient in coefficients[1:]:
        result = result * x + f64(coefficient)
    return result


def exp(let: Let, x: Expr) -> Expr:
    """e^x: 2^n times the Taylor series on [-ln 2 / 2, ln 2 / 2]; 0 or infinity beyond float64's range."""
    high = 6.93145751953125e-1  # n times it is exact
    terms = [1.0 / math.factorial(power) for power in range(13, -1, -1)]

    def reduced(x: Expr) -> Expr:
        scaled = x * f64(1.0 / math.log(2.0))
        rounded = cast("int64", scaled + select(scaled < f64(0.0), f64(-0.5), f64(0.5)))
        return let(rounded, "n", lambda n: value(x, n))

    def value(x: Expr, n: Expr) -> Expr:
        count = cast("float64", n)
        remainder = (x - count * f64(high)) - count * f64(1.4286068203094172321e-6)
        half = n >> i64(1)  # two factors, as 2^n may not be a float64 where the result is
        return let(remainder, "r", lambda r: series(r, terms)) * _two_to(half) * _two_to(n - half)

    limited = tirx.max(f64(-746.0), tirx.min(f64(710.0), x))  # in this order, NaN stays NaN
    return let(limited, "x", reduced)


def _two_to(n: Expr) -> Expr:
    return reinterpreted((n + i64(1023)) << i64(52), "float64")


def log(let: Let, x: Expr) -> Expr:
    """Natural logarithm: 2 artanh((m - 1) / (m + 1)) + e ln 2, with m in [sqrt 1/2, sqrt 2]; NaN below 0.

    A subnormal x is multiplied by 2^52.
    """
    terms = [1.0 / (2 * power + 1) for power in range(11, -1, -1)]
    normal = f64(2.0**-1022)

    def split(x: Expr) -> Expr:
        scaled = select(x < normal, x * f64(2.0**52), x)
        return let(reinterpreted(scaled, "int64"), "bits", lambda bits: parts(x, bits))

    def parts(x: Expr, bits: Expr) -> Expr:
        exponent = cast("float64", (bits >> i64(52)) - select(x < normal, i64(1074), i64(1022)))
        mantissa_bits = (bits & i64((1 << 52) - 1)) | i64(0x3FE0000000000000)
        mantissa = reinterpreted(mantissa_bits, "float64")
        return let(exponent, "e", lambda e: let(mantissa, "m", lambda m: value(x, e, m)))

    def value(x: Expr, e: Expr, m: Expr) -> Expr:
        low = m < f64(math.sqrt(0.5))
        exponent, number = select(low, e - f64(1.0), e), select(low, m + m, m)
        ratio = (number - f64(1.0)) / (number + f64(1.0))

        def total(s: Expr) -> Expr:
            tail = f64(2.0) * s * series(s * s, terms) + exponent * f64(1.4286068203094172321e-6)
            logarithm = tail + exponent * f64(6.93145751953125e-1)
            finite = select(x < f64(math.inf), logarithm, x)
            return select(x > f64(0.0), finite, select(x >= f64(0.0), f64(-math.inf), f64(math.nan)))

        return let(ratio, "s", total)

    return let(x, "x", split)


def sigmoid(let: Let, x: Expr) -> Expr:
    """1 / (1 + e^-x)."""
    return f64(1.0) / (f64(1.0) + exp(let, f64(0.0) - x))


def tanh(let: Let, x: Expr) -> Expr:
    """tanh x: a series for |x| < 1/20, else 1 - 2 / (e^2x + 1)."""
    terms = (62.0 / 2835, -17.0 / 315, 2.0 / 15, -1.0 / 3, 1.0)

    def value(x: Expr) -> Expr:
        small = x * series(x * x, terms)
        return select(tirx.abs(x) < f64(0.05), small, f64(1.0) - f64(2.0) / (exp(let, x + x) + f64(1.0)))

    return let(x, "x", value)


UNARY: dict[str, Callable[[Let, Expr], Expr]] = {
    "exp": exp,
    "log": log,
    "sigmoid": sigmoid,
    "tanh": tanh,
    "exp2": lambda let, x: exp(let, x * f64(math.log(2.0))),
    "log2": lambda let, x: log(let, x) * f64(1.0 / math.log(2.0)),
    "log10": lambda let, x: log(let, x) * f64(1.0 / math.log(10.0)),
    "rsqrt": lambda _, x: f64(1.0) / tirx.sqrt(x),
    **double_rounding.UNARY,
}
