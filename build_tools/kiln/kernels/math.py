"""Mathematical functions without a library: float32 polynomials that become vector code.

Left to LLVM, exp, tanh, erf and their kind are one call of libm an element: slow, and a symbol that a
freestanding device lacks. Range reductions and minimax coefficients are those of the Cephes library's
single-precision functions (S. Moshier, 1992); those of tanh and erf were fitted for this file, to the least
greatest relative error (Lawson's iteration; 1e-9 and 2e-8 before rounding). Errors, over all float32 inputs
in the tests' ranges: exp 2 ulp, log 2 ulp, tanh 3e-7, sigmoid 2e-7, erf 4e-7, sin and cos 2e-7 (absolute).
float16 is computed in float32.
"""

from __future__ import annotations

import contextvars
import math
from collections.abc import Callable, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Op, TensorLoad

Expr = Any

# TVM 0.27 turns vectors of these back into loops over single elements, since nothing says that it need not.
for _name in ("erf", "log1p", "nearbyint", "rsqrt"):
    Op.get(f"tirx.{_name}").set_attr("TVectorizable", True)


def _f(value: float) -> Expr:
    return tirx.FloatImm("float32", value)


def _i(value: int) -> Expr:
    return tirx.IntImm("int32", value)


def round_small(x: Expr) -> Expr:
    """x rounded to the nearest integer, ties to even, for |x| < 2^22: (x + c) - c with c = 1.5 * 2^23.

    The second c is written as bits, since TVM 0.27 simplifies (x + c) - c to x for floats too.
    """
    return (x + _f(12582912.0)) - _bits(_i(0x4B400000), "float32")


def _polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Horner's rule, highest power first."""
    result = _f(coefficients[0])
    for coefficient in coefficients[1:]:
        result = result * x + _f(coefficient)
    return result


def _scalar(x: Expr) -> str:
    """The data type of one lane of x."""
    return str(x.ty.dtype).split("x")[0]


def _like(dtype: str, x: Expr) -> str:
    """`dtype` with as many lanes as x has."""
    lanes = int(tvm.DataType(str(x.ty.dtype)).lanes)
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


def _bits(value: Expr, dtype: str) -> Expr:
    return tirx.reinterpret(_like(dtype, value), value)


def _cast(dtype: str, x: Expr) -> Expr:
    return tirx.Cast(_like(dtype, x), x)


def _select(condition: Expr, yes: Expr, no: Expr) -> Expr:
    """Lane by lane; scalars stand for every lane."""
    lanes = int(tvm.DataType(str(condition.ty.dtype)).lanes)

    def wide(x: Expr) -> Expr:
        scalar = int(tvm.DataType(str(x.ty.dtype)).lanes) == 1
        return tirx.Broadcast(x, lanes) if lanes > 1 and scalar else x

    return tirx.Select(condition, wide(yes), wide(no))


# Statements that must run before the store being rewritten; None where nothing may be moved out.
_Bindings = list[Any]
_hoisted: contextvars.ContextVar[_Bindings | None] = contextvars.ContextVar("hoisted", default=None)


def _let(value: Expr, name: str, body: Callable[[Expr], Expr]) -> Expr:
    """Compute `value` once for all its uses in `body`.

    It is put into a register by statements before the store. (A bound variable would say it better, but
    TVM 0.27's LowerIntrin and code generator write its value out at every use, so that chains of functions
    grow exponentially.)
    """
    bindings = _hoisted.get()
    if bindings is None or isinstance(value, tirx.Var | TensorLoad):
        return body(value)
    lanes = int(tvm.DataType(str(value.ty.dtype)).lanes)
    register = tirx.decl_buffer([lanes], _scalar(value), name, scope="local")
    zero = tirx.IntImm("int32", 0)
    index = zero if lanes == 1 else tirx.Ramp(zero, tirx.IntImm("int32", 1), lanes)
    bindings += [tirx.AllocBuffer(register), tirx.BufferStore(register, value, [index])]
    return body(tirx.BufferLoad(register, [index]))


def floor(x: Expr) -> Expr:
    """floor(x) by conversion; values of 2^23 and more are whole already."""

    def body(x: Expr) -> Expr:
        whole = _cast("float32", _cast("int32", x))
        lower = _select(whole > x, whole - _f(1.0), whole)
        return _select(tirx.abs(x) < _f(8388608.0), lower, x)

    return _let(x, "x", body)


def ceil(x: Expr) -> Expr:
    """ceil(x) = -floor(-x)."""
    return _f(0.0) - floor(_f(0.0) - x)


def trunc(x: Expr) -> Expr:
    """x towards zero."""
    return _let(
        x, "x", lambda x: _select(
            tirx.abs(x) < _f(8388608.0), _cast("float32", _cast("int32", x)), x
        )
    )  # fmt: skip


def round_even(x: Expr) -> Expr:
    """Nearest integer, ties to even: 2^23 with the sign of x drops the fraction."""

    def body(x: Expr) -> Expr:
        magic = _select(x < _f(0.0), _f(-8388608.0), _f(8388608.0))
        bits = _select(x < _f(0.0), _i(-889192448), _i(0x4B000000))
        return _select(tirx.abs(x) < _f(8388608.0), (x + magic) - _bits(bits, "float32"), x)

    return _let(x, "x", body)


def round_away(x: Expr) -> Expr:
    """Nearest integer, ties away from zero. (x + 0.5 would round up just below a half.)"""

    def body(x: Expr) -> Expr:
        return _let(trunc(x), "whole", lambda whole: nearest(x, whole))

    def nearest(x: Expr, whole: Expr) -> Expr:
        further = whole + _select(x < _f(0.0), _f(-1.0), _f(1.0))
        return _select(tirx.abs(x - whole) < _f(0.5), whole, further)

    return _let(x, "x", body)


def exp(x: Expr) -> Expr:
    """e^x: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2]; outside float32's range 0 or the largest.

    The lower limit gives n = -127, whose bits are those of 0: what a mask has removed becomes exactly 0, and
    no subnormal number, with which some processors multiply a hundred times slower.
    """
    ln2_high, ln2_low = 0.693359375, -2.12194440e-4
    terms = (
        1.9875691500e-4,
        1.3981999507e-3,
        8.3334519073e-3,
        4.1665795894e-2,
        1.6666665459e-1,
        5.0000001201e-1,
    )

    def reduced(x: Expr) -> Expr:
        return _let(round_small(x * _f(1.0 / math.log(2.0))), "n", lambda n: scaled(x, n))

    def scaled(x: Expr, n: Expr) -> Expr:
        rest = (x - n * _f(ln2_high)) - n * _f(ln2_low)

        def value(r: Expr) -> Expr:
            mantissa = _polynomial(r, terms) * (r * r) + r + _f(1.0)
            return mantissa * _bits((_cast("int32", n) + _i(127)) << _i(23), "float32")

        return _let(rest, "r", value)

    return _let(tirx.max(tirx.min(x, _f(88.3762626647949)), _f(-88.0)), "x", reduced)


def log(x: Expr) -> Expr:
    """Natural logarithm of x > 0; -inf at 0 and NaN below."""
    terms = (
        7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
        -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
    )  # fmt: skip

    def split(x: Expr) -> Expr:
        bits = _bits(x, "int32")
        exponent = _cast("float32", (bits >> _i(23)) - _i(126))
        mantissa = _bits((bits & _i(0x007FFFFF)) | _i(0x3F000000), "float32")
        return _let(exponent, "e", lambda e: _let(mantissa, "m", lambda m: value(x, e, m)))

    def value(x: Expr, e: Expr, m: Expr) -> Expr:
        low = m < _f(0.707106781186547524)
        exponent = _select(low, e - _f(1.0), e)
        fraction = _select(low, m + m, m) - _f(1.0)

        def series(f: Expr) -> Expr:
            square = f * f
            tail = _polynomial(f, terms) * f * square + exponent * _f(-2.12194440e-4) - square * _f(0.5)
            result = f + tail + exponent * _f(0.693359375)
            invalid = _select(x < _f(0.0), _f(math.nan), _f(-math.inf))
            return _select(x > _f(0.0), result, invalid)

        return _let(fraction, "f", series)

    return _let(x, "x", split)


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + e^-x)."""
    return _f(1.0) / (_f(1.0) + exp(_f(0.0) - x))


def _odd_ratio(x: Expr, limit: float, above: Sequence[float], below: Sequence[float]) -> Expr:
    """x P(x^2) / Q(x^2), for a function that is ±1 beyond ±limit."""

    def ratio(x: Expr) -> Expr:
        return _let(x * x, "square", lambda s: x * _polynomial(s, above) / _polynomial(s, below))

    inside = tirx.max(tirx.min(x, _f(limit)), _f(-limit))
    return tirx.max(tirx.min(_let(inside, "x", ratio), _f(1.0)), _f(-1.0))


def tanh(x: Expr) -> Expr:
    """tanh x as a ratio of polynomials: one division, no exponential."""
    above = (-1.2247427320e-11, 3.0644244752e-8, 2.8032061034e-5, 3.8695461046e-3, 1.3680887087e-1, 1.0)
    below = (1.2890863955e-6, 3.9407799273e-4, 2.7250296843e-2, 4.7014219182e-1, 1.0)
    return _odd_ratio(x, 9.0, above, below)


def erf(x: Expr) -> Expr:
    """erf x as a ratio of polynomials: one division, no exponential."""
    above = (
        1.9869459756e-6, 2.8454606099e-4, 3.8824252721e-3, 5.3098858780e-2, 1.9352348773e-1, 1.1283791396,
    )  # fmt: skip
    below = (3.7420864872e-5, 1.1853512532e-3, 1.5205390535e-2, 1.1534105534e-1, 5.0483828472e-1, 1.0)
    return _odd_ratio(x, 4.0, above, below)


def _sine(x: Expr, quarters: int) -> Expr:
    """sin(x + quarters * pi / 2), for |x| < 8192: the remainder of pi / 2 in three parts, then a series."""
    sines = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
    cosines = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)

    def reduced(x: Expr) -> Expr:
        return _let(round_small(x * _f(2.0 / math.pi)), "n", lambda n: rest(x, n))

    def rest(x: Expr, n: Expr) -> Expr:
        parts = (1.5703125, 4.837512969970703125e-4, 7.54978995489188216e-8)
        remainder = ((x - n * _f(parts[0])) - n * _f(parts[1])) - n * _f(parts[2])
        return _let(
            remainder, "r", lambda r: _let(_cast("int32", n) + _i(quarters), "q", lambda q: value(r, q))
        )

    def value(r: Expr, q: Expr) -> Expr:
        square = r * r
        sine = _polynomial(square, sines) * square * r + r
        cosine = _polynomial(square, cosines) * square * square - square * _f(0.5) + _f(1.0)
        chosen = _select((q & _i(1)) < _i(1), sine, cosine)
        return _select((q & _i(2)) < _i(1), chosen, _f(0.0) - chosen)

    return _let(x, "x", reduced)


def power(x: Expr, exponent: Expr) -> Expr:
    """x^exponent: products for small whole exponents, else e^(exponent log |x|) with the sign of x^exponent.

    The relative error of the second form is about 1e-7 (1 + |exponent log |x||).
    """
    constant = exponent.value if isinstance(exponent, tirx.Broadcast) else exponent
    if not isinstance(constant, tirx.FloatImm):
        return _general_power(x, exponent)
    value = float(constant.value)
    if value == 0.5:
        return tirx.sqrt(x)
    if value != int(value) or not 1 <= abs(value) <= 8:
        return _general_power(x, exponent)

    def body(x: Expr) -> Expr:
        result = x
        for _ in range(int(abs(value)) - 1):
            result = result * x
        return result if value > 0 else _f(1.0) / result

    return _let(x, "x", body)


def _general_power(x: Expr, y: Expr) -> Expr:
    def sized(x: Expr, y: Expr) -> Expr:
        size = exp(y * log(tirx.max(tirx.abs(x), _f(1.17549435e-38))))
        return _let(size, "size", lambda size: signed(x, y, size))

    def signed(x: Expr, y: Expr, size: Expr) -> Expr:
        half = y * _f(0.5)
        odd_or_even = _select(tirx.EQ(trunc(half), half), size, _f(0.0) - size)
        below = _select(tirx.EQ(trunc(y), y), odd_or_even, _f(math.nan))
        at_zero = _select(y > _f(0.0), _f(0.0), _f(math.inf))
        other = _select(x > _f(0.0), size, _select(x < _f(0.0), below, at_zero))
        return _select(tirx.abs(y) > _f(0.0), other, _f(1.0))

    return _let(x, "x", lambda x: _let(y, "y", lambda y: sized(x, y)))


_UNARY: dict[str, Callable[..., Expr]] = {
    "exp": exp,
    "log": log,
    "tanh": tanh,
    "sigmoid": sigmoid,
    "erf": erf,
    "floor": floor,
    "ceil": ceil,
    "trunc": trunc,
    # TVM's round has C's rule, ties away from zero; nearbyint has the default mode's, ties to even
    "round": round_away,
    "nearbyint": round_even,
    "sin": lambda x: _sine(x, 0),
    "cos": lambda x: _sine(x, 1),
    "rsqrt": lambda x: _f(1.0) / tirx.sqrt(x),
    "exp2": lambda x: exp(x * _f(math.log(2.0))),
    "log2": lambda x: log(x) * _f(1.0 / math.log(2.0)),
    "log10": lambda x: log(x) * _f(1.0 / math.log(10.0)),
    "log1p": lambda x: log(x + _f(1.0)),
}


def _lower_call(call: Any) -> Any:
    name = str(getattr(call.op, "name", "")).removeprefix("tirx.")
    function = power if name == "pow" else _UNARY.get(name)
    dtype = _scalar(call)
    if function is None or dtype not in ("float32", "float16"):
        return call
    if dtype == "float32":
        return function(*call.args)
    # computed in float32, as processors without float16 do
    return _cast("float16", function(*(_cast("float32", item) for item in call.args)))


def _calls(expr: Expr, names: Sequence[str]) -> bool:
    def visit(call: Any) -> Any:
        name = str(getattr(call.op, "name", "")).removeprefix("tirx.")
        return tvm_ffi.VisitInterrupt(name) if name in names else None

    return tvm_ffi.structural_walk(expr, ((Call, visit),)) is not None


def _lower_statement(statement: Any) -> Any:
    """The store or binding with its value lowered, after what it needs computed first."""
    if not _calls(statement.value, [*_UNARY, "pow"]):
        return statement
    # What a condition guards must not run before it: there the shared parts are written out each time.
    bindings: _Bindings | None = None if _calls(statement.value, ["if_then_else"]) else []
    token = _hoisted.set(bindings)
    try:
        value = tvm_ffi.structural_map(statement.value, ((Call, _lower_call),))
    finally:
        _hoisted.reset(token)
    if isinstance(statement, tirx.Bind):
        result = tirx.Bind(statement.var, value)
    else:
        result = tirx.BufferStore(statement.buffer, value, statement.indices)
    return tirx.SeqStmt([*bindings, result]) if bindings else result


def lower_math(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Replace float32 calls of mathematical functions by expressions that need no library.

    Needs vectorised code that nothing simplifies any more.
    """
    statements = ((tirx.BufferStore, _lower_statement), (tirx.Bind, _lower_statement))
    return func.with_body(tvm_ffi.structural_map(func.body, statements))
