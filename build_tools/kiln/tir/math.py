"""Mathematical functions without a library: float32 polynomials that become vector code.

LLVM alone would compile exp, tanh, erf and similar functions to one libm call per element: slow, and a symbol
that a freestanding device lacks. Range reductions and minimax coefficients are from the Cephes library's
single-precision functions (S. Moshier, 1992); the coefficients of exp, log, tanh and erf were fitted for
this file, minimising the greatest relative error (Lawson's iteration; 3e-9, 6e-9, 1e-9 and 2e-8 before
rounding). Errors, over all float32 inputs in the tests' ranges: exp 2 ulp, log 2 ulp, tanh 3e-7, sigmoid
2e-7, erf 4e-7, sin and cos 2e-7 (absolute; 2e-6 from 100 on, to 8192). float16 is computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Expr, Op

from kiln.callbacks import structural_map, structural_walk
from kiln.tir import double_math, double_trigonometry, exact_remainder, inverse_functions
from kiln.tir.large_angles import with_large
from kiln.tir.op_names import op_name
from kiln.tir.real_power import FloatFunctions, real_power
from kiln.tir.shared_values import STATEMENTS, rewritten_statement
from kiln.tir.vector_expr import (
    Let,
    cast,
    ceil,
    f32,
    floor,
    i32,
    polynomial,
    reinterpreted,
    round_away,
    round_even,
    round_small,
    scalar,
    select,
    trunc,
)

_LARGEST, _LEAST = 3.4028234663852886e38, 2.0**-126  # of the normal numbers of float32

# Without this attribute, TVM 0.27 turns vectors of these functions back into loops over single elements.
for _name in ("erf", "isnan", "log1p", "nearbyint", "rsqrt", *inverse_functions.NAMES):
    Op.get(f"tirx.{_name}").set_attr("TVectorizable", True)


def _clamped(x: Expr, low: float, high: float) -> Expr:
    """x limited to a range. NaN stays NaN: a comparison with it is false, and chooses the second operand."""
    return tirx.max(f32(low), tirx.min(f32(high), x))


def exp(let: Let, x: Expr) -> Expr:
    """e^x: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2]; 0 or infinity outside float32's range."""
    return _exp_of(let, x, 1)


def _exp_of(let: Let, x: Expr, sign: int) -> Expr:
    """e^(sign x), where sign is 1 or -1: a negation that costs no instruction.

    The last bits of x / ln 2 + shift are n + 127: moved to the exponent's place they are 2^n, without a
    conversion. n is at most 127: from 2^127 on the polynomial leaves its interval, and then float32's range.
    The lower limit gives n = -127, whose bits are the bits of 0: a masked element becomes exactly 0, not a
    subnormal number, with which some processors multiply a hundred times slower.
    """
    ln2_high, ln2_low = 0.693359375, -2.12194440e-4
    terms = (1.3814537087e-3, 8.3687463775e-3, 4.1668392718e-2, 1.6666521132e-1, 0.5, 1.0, 1.0)
    signed = [term * sign**power for power, term in zip(range(len(terms) - 1, -1, -1), terms, strict=True)]
    shift = 12582912.0 + 127.0  # 1.5 * 2^23 + 127, see round_small

    def reduced(x: Expr) -> Expr:
        rounded = tirx.min(f32(shift + 127.0), x * f32(sign / math.log(2.0)) + f32(shift))
        return let(rounded, "rounded", lambda rounded: scaled(x, rounded))

    def scaled(x: Expr, rounded: Expr) -> Expr:
        n = rounded - reinterpreted(i32(0x4B40007F), "float32")  # minus `shift`: TVM would cancel a float
        power = reinterpreted(reinterpreted(rounded, "int32") << i32(23), "float32")

        def remainder(n: Expr) -> Expr:
            return (x - n * f32(sign * ln2_high)) - n * f32(sign * ln2_low)

        fraction = let(n, "n", remainder)
        return let(fraction, "r", lambda r: polynomial(r, signed) * power)

    lowest = tirx.max(f32(-88.0), x) if sign > 0 else tirx.min(f32(88.0), x)
    return let(lowest, "x", reduced)


def log(let: Let, x: Expr) -> Expr:
    """Natural logarithm of x > 0; -inf at 0, infinity at infinity, NaN below 0 and for NaN."""
    return _log(let, x, subnormal=True)


def _log_of_normal(let: Let, x: Expr) -> Expr:
    """`log` of an x that is never subnormal."""
    return _log(let, x, subnormal=False)


def _log(let: Let, x: Expr, subnormal: bool) -> Expr:
    """`log`; `subnormal`: also of subnormal numbers.

    x = 2^e m, with m from sqrt(1/2) to sqrt(2): the bits of m lie between those of the limits, so subtracting
    the bits of the lower limit leaves e above the bits of the fraction. A subnormal x is multiplied by 2^23.
    """
    terms = (
        -7.6344974339e-2, 1.2761577964e-1, -1.3160182536e-1, 1.4201757312e-1,
        -1.6623356938e-1, 2.0001226664e-1, -2.5000819564e-1, 3.3333331347e-1,
    )  # fmt: skip
    lowest = 0x3F3504F3  # sqrt(1/2)
    normal = f32(_LEAST)

    def split(x: Expr) -> Expr:
        scaled = select(x < normal, x * f32(2.0**23), x) if subnormal else x
        return let(reinterpreted(scaled, "int32"), "bits", lambda bits: power_of_two(x, bits))

    def power_of_two(x: Expr, bits: Expr) -> Expr:
        return let((bits - i32(lowest)) >> i32(23), "e", lambda e: fraction(x, bits, e))

    def fraction(x: Expr, bits: Expr, e: Expr) -> Expr:
        mantissa = reinterpreted(bits - (e << i32(23)), "float32")
        whole = e - select(x < normal, i32(23), i32(0)) if subnormal else e
        exponent = let(cast("float32", whole), "exponent")
        return let(mantissa - f32(1.0), "f", lambda f: series(x, exponent, f))

    def series(x: Expr, exponent: Expr, f: Expr) -> Expr:
        return let(f * f, "square", lambda square: value(x, exponent, f, square))

    def value(x: Expr, exponent: Expr, f: Expr, square: Expr) -> Expr:
        # Even and odd powers apart: a chain of operations half as long.
        ratio = polynomial(square, terms[0::2]) * f + polynomial(square, terms[1::2])
        tail = ratio * f * square + exponent * f32(-2.12194440e-4) - square * f32(0.5)
        result = f + tail + exponent * f32(0.693359375)
        invalid = select(x >= f32(0.0), f32(-math.inf), f32(math.nan))
        return select(x > f32(0.0), select(x > f32(_LARGEST), x, result), invalid)

    return let(x, "x", split)


def log1p(let: Let, x: Expr) -> Expr:
    """log(1 + x): a series below 1/64, where 1 + x has lost bits of x. The relative error is 4e-6."""
    terms = [(-1.0) ** (k + 1) / k for k in range(4, 0, -1)]

    def value(x: Expr) -> Expr:
        return select(tirx.abs(x) < f32(1 / 64), x * polynomial(x, terms), _log_of_normal(let, x + f32(1.0)))

    return let(x, "x", value)


def _log_of(let: Let, x: Expr) -> Expr:
    """log x; of a sum with 1, as softplus has, log1p, which loses less."""
    if isinstance(x, tirx.Add):
        for one, other in ((x.a, x.b), (x.b, x.a)):
            constant = one.value if isinstance(one, tirx.Broadcast) else one
            if isinstance(constant, tirx.FloatImm) and float(constant.value) == 1.0:
                return log1p(let, other)
    return log(let, x)


def sigmoid(let: Let, x: Expr) -> Expr:
    """1 / (1 + e^-x)."""
    return f32(1.0) / (f32(1.0) + _exp_of(let, x, -1))


def _odd_ratio(let: Let, x: Expr, limit: float, above: Sequence[float], below: Sequence[float]) -> Expr:
    """x P(x^2) / Q(x^2), for a function that is ±1 beyond ±limit."""

    def ratio(x: Expr) -> Expr:
        return let(x * x, "square", lambda s: x * polynomial(s, above) / polynomial(s, below))

    return _clamped(let(_clamped(x, -limit, limit), "x", ratio), -1.0, 1.0)


def tanh(let: Let, x: Expr) -> Expr:
    """tanh x as a ratio of polynomials: one division, no exponential."""
    above = (-1.2247427320e-11, 3.0644244752e-8, 2.8032061034e-5, 3.8695461046e-3, 1.3680887087e-1, 1.0)
    below = (1.2890863955e-6, 3.9407799273e-4, 2.7250296843e-2, 4.7014219182e-1, 1.0)
    return _odd_ratio(let, x, 9.0, above, below)


def erf(let: Let, x: Expr) -> Expr:
    """erf x as a ratio of polynomials: one division, no exponential."""
    above = (
        1.9869459756e-6, 2.8454606099e-4, 3.8824252721e-3, 5.3098858780e-2, 1.9352348773e-1, 1.1283791396,
    )  # fmt: skip
    below = (3.7420864872e-5, 1.1853512532e-3, 1.5205390535e-2, 1.1534105534e-1, 5.0483828472e-1, 1.0)
    return _odd_ratio(let, x, 4.0, above, below)


def _turned(let: Let, x: Expr, chosen: Callable[[Expr, Expr, Expr], Expr]) -> Expr:
    """chosen(sin r, cos r, quarter) where x = r + quarter * pi / 2 and |r| <= pi / 4.

    The reduction subtracts pi / 2 in three parts, but for large angles; series follow.
    """
    sines = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
    cosines = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)

    def reduced(x: Expr) -> Expr:
        return let(round_small(x * f32(2.0 / math.pi)), "n", lambda n: rest(x, n))

    def rest(x: Expr, n: Expr) -> Expr:
        pi_parts = (1.5703125, 4.837512969970703125e-4, 7.54978995489188216e-8)
        remainder = ((x - n * f32(pi_parts[0])) - n * f32(pi_parts[1])) - n * f32(pi_parts[2])
        return value(*with_large(let, x, remainder, cast("int32", n)))

    def value(r: Expr, q: Expr) -> Expr:
        square = r * r
        sine = polynomial(square, sines) * square * r + r
        cosine = polynomial(square, cosines) * square * square - square * f32(0.5) + f32(1.0)
        return chosen(sine, cosine, q)

    return let(x, "x", reduced)


def _sine(let: Let, x: Expr, quarters: int) -> Expr:
    """sin(x + quarters * pi / 2)."""

    def chosen(sine: Expr, cosine: Expr, quarter: Expr) -> Expr:
        q = quarter + i32(quarters)
        value = select((q & i32(1)) < i32(1), sine, cosine)
        return select((q & i32(2)) < i32(1), value, f32(0.0) - value)

    return _turned(let, x, chosen)


def tan(let: Let, x: Expr) -> Expr:
    """tan x: sin r / cos r, or -cos r / sin r after an odd number of quarters."""

    def chosen(sine: Expr, cosine: Expr, quarter: Expr) -> Expr:
        even = (quarter & i32(1)) < i32(1)
        return select(even, sine, f32(0.0) - cosine) / select(even, cosine, sine)

    return _turned(let, x, chosen)


def power(let: Let, x: Expr, exponent: Expr) -> Expr:
    """x^exponent: products for small whole exponents, else e^(exponent log |x|) with the sign of x^exponent.

    The relative error of the second form is about 1e-7 (1 + |exponent log |x||).
    """
    constant = exponent.value if isinstance(exponent, tirx.Broadcast) else exponent
    if not isinstance(constant, tirx.FloatImm):
        return _general_power(let, x, exponent)
    value = float(constant.value)
    if value == 0.5:
        return tirx.sqrt(x)
    if not 1 <= abs(value) <= 8 or value != int(value):
        return _general_power(let, x, exponent)

    def body(x: Expr) -> Expr:
        result = x
        for _ in range(int(abs(value)) - 1):
            result = result * x
        return result if value > 0 else f32(1.0) / result

    return let(x, "x", body)


def _general_power(let: Let, x: Expr, y: Expr) -> Expr:
    return real_power(let, x, y, FloatFunctions(f32, exp, log, trunc))


_UNARY: dict[str, Callable[[Let, Expr], Expr]] = {
    "exp": exp,
    "log": _log_of,
    "tanh": tanh,
    "sigmoid": sigmoid,
    "erf": erf,
    "floor": floor,
    "ceil": ceil,
    "trunc": trunc,
    # TVM's round is C's round, ties away from zero; nearbyint rounds ties to even, the default mode
    "round": round_away,
    "nearbyint": round_even,
    "sin": lambda let, x: _sine(let, x, 0),
    "cos": lambda let, x: _sine(let, x, 1),
    "rsqrt": lambda _, x: f32(1.0) / tirx.sqrt(x),
    "exp2": lambda let, x: exp(let, x * f32(math.log(2.0))),
    "log2": lambda let, x: log(let, x) * f32(1.0 / math.log(2.0)),
    "log10": lambda let, x: log(let, x) * f32(1.0 / math.log(10.0)),
    "tan": tan,
    "atan": inverse_functions.atan,
    "asin": inverse_functions.asin,
    "acos": inverse_functions.acos,
    "sinh": lambda let, x: inverse_functions.sinh(let, x, exp),
    "cosh": lambda let, x: inverse_functions.cosh(let, x, exp),
    "asinh": lambda let, x: inverse_functions.asinh(let, x, _log_of_normal),
    "acosh": lambda let, x: inverse_functions.acosh(let, x, _log_of_normal),
    "atanh": lambda let, x: inverse_functions.atanh(let, x, _log_of_normal),
    "log1p": log1p,
}


_DOUBLE: dict[str, Callable[..., Expr]] = {
    **double_math.UNARY,
    **double_trigonometry.UNARY,
    "pow": double_trigonometry.power,
}


def _lower_call(let: Let, call: Call) -> Any:
    name = op_name(call)
    function: Callable[..., Expr] | None = power if name == "pow" else _UNARY.get(name)
    dtype = scalar(call)
    if dtype == "float64" and name in _DOUBLE:
        return _DOUBLE[name](let, *call.args)
    if function is None or dtype not in ("float32", "float16"):
        return call
    if dtype == "float32":
        return function(let, *call.args)
    # computed in float32, as processors without float16 do
    return cast("float16", function(let, *(cast("float32", item) for item in call.args)))


_FUNCTIONS = {*_UNARY, "pow"}


def _is_lowered(expr: Expr) -> bool:
    """Whether an expression or a statement calls one of `_FUNCTIONS`, or has a remainder of floats."""

    def visit(node: Any) -> Any:
        is_call = isinstance(node, Call)
        found = op_name(node) in _FUNCTIONS if is_call else exact_remainder.concerns(node)
        return tvm_ffi.VisitInterrupt() if found else None

    return structural_walk(expr, (((Call, tirx.Mod), visit),)) is not None


def _lowered(let: Let, value: Any) -> Any:
    rules = ((Call, partial(_lower_call, let)), (tirx.Mod, partial(exact_remainder.lowered, let)))
    return structural_map(value, rules)


def _lower_statement(statement: tirx.Stmt) -> Any:
    """A statement with its value lowered, preceded by the statements that compute shared values."""
    return rewritten_statement(statement, _is_lowered, _lowered)


def lower_math(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Replace calls of mathematical functions by expressions that need no library.

    Runs after vectorisation, and after the last pass that simplifies expressions.
    """
    if not _is_lowered(func.body):
        return func
    return func.with_body(structural_map(func.body, ((STATEMENTS, _lower_statement),)))
