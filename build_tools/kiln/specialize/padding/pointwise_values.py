"""Elementwise operators on abstract values: exact for constants, else interval rules or unknown."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kiln.specialize.padding.values import (
    ANYTHING,
    FINITE,
    INFINITY,
    Number,
    ValueRange,
    constant,
    join,
    like,
    within,
)

Function = Callable[..., ValueRange]


def _sum(a: Number, b: Number, otherwise: Number) -> Number:
    total = a + b
    return otherwise if isinstance(total, float) and math.isnan(total) else total


def add(a: ValueRange, b: ValueRange) -> ValueRange:
    """a + b. An infinite constant absorbs finite values; offsets of masks add up."""
    for one, other in ((a, b), (b, a)):
        if one.is_constant and not one.finite and other.finite:
            return one
    low, high = _sum(a.low, b.low, -INFINITY), _sum(a.high, b.high, INFINITY)
    offset = a.drop + b.drop
    if (not a.drop and a.up) or (not b.drop and b.up):
        offset = 0  # the other summand might outweigh the mask
    return ValueRange(low, high, a.finite and b.finite, offset, a.up or b.up, a.down or b.down)


def negative(a: ValueRange) -> ValueRange:
    return ValueRange(-a.high, -a.low, a.finite, up=a.down, down=a.up)


def subtract(a: ValueRange, b: ValueRange) -> ValueRange:
    return add(a, negative(b))


def _product(a: Number, b: Number) -> Number:
    return 0 if a == 0 or b == 0 else a * b


def multiply(a: ValueRange, b: ValueRange) -> ValueRange:
    """a * b, with 0 * infinity = 0 at the ends of intervals. A positive constant scales a mask's offset."""
    if not (a.known and b.known):
        return ANYTHING
    ends = [_product(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    whole = ValueRange(min(ends), max(ends), a.finite and b.finite)
    for one, other in ((a, b), (b, a)):
        if one.is_constant and one.finite and one.low > 0:
            offset = _product(one.low, other.drop)
            return replace(whole, offset=offset, up=one.up or other.up, down=other.down)
    return like(whole, a, b)


def square(a: ValueRange) -> ValueRange:
    ends = (_product(a.low, a.low), _product(a.high, a.high))
    least = 0 if a.low <= 0 <= a.high else min(ends)
    return like(ValueRange(least, max(ends), a.finite), a)


def divide(a: ValueRange, b: ValueRange) -> ValueRange:
    """a / b; unknown if b may be 0."""
    if b.low <= 0 <= b.high:
        return ANYTHING
    low, high = sorted((_inverse(b.low), _inverse(b.high)))
    return multiply(a, like(ValueRange(low, high, b.finite), b))


def _inverse(number: Number) -> float:
    return 0.0 if math.isinf(number) else 1.0 / number


def maximum(a: ValueRange, b: ValueRange) -> ValueRange:
    """max(a, b): the interval of the greater ends."""
    for one, other in ((a, b), (b, a)):
        if one.equals(-INFINITY) and other.finite:
            return other
    drop = max(a.drop, b.drop)
    bounds = (max(a.low, b.low), max(a.high, b.high))
    return ValueRange(*bounds, a.finite and b.finite, drop, a.up or b.up, a.down or b.down)


def minimum(a: ValueRange, b: ValueRange) -> ValueRange:
    return negative(maximum(negative(a), negative(b)))


def exp(a: ValueRange) -> ValueRange:
    """exp(a): 0 for masked scores; finite only if a is below 88, the overflow limit of float32."""
    if a.offset and a.is_masked:
        return within(0, 0)
    top = INFINITY if a.high > 700 else math.exp(a.high)
    bottom = 0.0 if a.low < -700 else math.exp(min(a.low, 700))
    return ValueRange(bottom, top, a.finite and a.high < 88)


def sqrt(a: ValueRange) -> ValueRange:
    if a.low < 0:
        return ANYTHING
    return ValueRange(math.sqrt(a.low), math.sqrt(a.high) if a.high < INFINITY else INFINITY, a.finite)


def rsqrt(a: ValueRange) -> ValueRange:
    return ANYTHING if a.low <= 0 else divide(constant(1.0), sqrt(a))


def log(a: ValueRange) -> ValueRange:
    return ValueRange(finite=a.finite) if a.low > 0 else ANYTHING


def power(a: ValueRange, b: ValueRange) -> ValueRange:
    """a ** b, for integer exponents of 0 and more, 0.5, -0.5, and positive bases; otherwise unknown."""
    if b.is_constant and float(b.low).is_integer() and b.low >= 0:
        return square(a) if b.low == 2 else finite(a)
    if b.equals(0.5):
        return sqrt(a)
    if b.equals(-0.5):
        return rsqrt(a)
    return ValueRange(0, finite=a.finite and b.finite) if a.low > 0 and b.low >= 0 else ANYTHING


def absolute(a: ValueRange) -> ValueRange:
    ends = (abs(a.low), abs(a.high))
    return like(ValueRange(0 if a.low <= 0 <= a.high else min(ends), max(ends), a.finite), a)


def relu(a: ValueRange) -> ValueRange:
    return ValueRange(max(a.low, 0), max(a.high, 0), a.finite, up=a.up)


def rounded(a: ValueRange) -> ValueRange:
    """A rule for rounding functions: every element changes by at most 1."""
    return replace(a, low=a.low - 1, high=a.high + 1)


def bounded(low: float, high: float) -> Function:
    """A rule for functions whose results are in low..high for every finite operand."""
    return lambda *values: within(low, high) if all(v.finite for v in values) else ANYTHING


def finite(*values: ValueRange) -> ValueRange:
    """A rule for functions with finite results for finite operands."""
    return like(FINITE, *values) if all(value.finite for value in values) else ANYTHING


def unknown(*values: ValueRange) -> ValueRange:
    """A rule for functions whose results may be any value."""
    return ANYTHING


TRUE, FALSE, EITHER = within(1, 1), within(0, 0), within(0, 1)


def less(a: ValueRange, b: ValueRange) -> ValueRange:
    if not (a.known and b.known):
        return EITHER
    return TRUE if a.high < b.low else FALSE if a.low >= b.high else EITHER


def less_equal(a: ValueRange, b: ValueRange) -> ValueRange:
    if not (a.known and b.known):
        return EITHER
    return TRUE if a.high <= b.low else FALSE if a.low > b.high else EITHER


def equal(a: ValueRange, b: ValueRange) -> ValueRange:
    disjoint = a.known and b.known and (a.high < b.low or b.high < a.low)
    return FALSE if disjoint else EITHER


def logical_not(a: ValueRange) -> ValueRange:
    return TRUE if a.equals(0) else FALSE if _is_true(a) else EITHER


def logical_and(a: ValueRange, b: ValueRange) -> ValueRange:
    return FALSE if a.equals(0) or b.equals(0) else TRUE if _is_true(a) and _is_true(b) else EITHER


def logical_or(a: ValueRange, b: ValueRange) -> ValueRange:
    return logical_not(logical_and(logical_not(a), logical_not(b)))


def _is_true(a: ValueRange) -> bool:
    return a.known and (a.low > 0 or a.high < 0)


def where(condition: ValueRange, a: ValueRange, b: ValueRange) -> ValueRange:
    """a where the condition is known to be true, b where it is known to be false, else either of them."""
    if condition.equals(0):
        return b
    if _is_true(condition):
        return a
    return join(a, b)


def clip(a: ValueRange, low: ValueRange, high: ValueRange) -> ValueRange:
    return minimum(maximum(a, low), high)


# Operator → (rule on intervals, NumPy function for constants; None: the interval rule is used for constants).
RULES: dict[str, tuple[Function, Any]] = {
    "add": (add, np.add),
    "subtract": (subtract, np.subtract),
    "multiply": (multiply, np.multiply),
    "divide": (divide, np.true_divide),
    "maximum": (maximum, np.maximum),
    "minimum": (minimum, np.minimum),
    "power": (power, np.power),
    "negative": (negative, np.negative),
    "abs": (absolute, np.abs),
    "square": (square, np.square),
    "exp": (exp, np.exp),
    "log": (log, np.log),
    "sqrt": (sqrt, np.sqrt),
    "rsqrt": (rsqrt, lambda a: 1 / np.sqrt(a)),
    "erf": (bounded(-1, 1), None),
    "tanh": (bounded(-1, 1), np.tanh),
    "sigmoid": (bounded(0, 1), lambda a: 1 / (1 + np.exp(-a))),
    "sin": (bounded(-1, 1), np.sin),
    "cos": (bounded(-1, 1), np.cos),
    "atan": (bounded(-1.6, 1.6), np.arctan),
    "asinh": (finite, np.arcsinh),
    "sign": (bounded(-1, 1), np.sign),
    "floor": (rounded, np.floor),
    "ceil": (rounded, np.ceil),
    "round": (rounded, np.round),
    "trunc": (rounded, np.trunc),
    "nn.relu": (relu, lambda a: np.maximum(a, 0)),
    "nn.leakyrelu": (finite, None),
    "nn.prelu": (finite, None),
    "nn.gelu": (finite, None),
    "nn.gelu_tanh": (finite, None),
    "nn.silu": (finite, None),
    "nn.softplus": (finite, None),
    "nn.dropout": (lambda a: a, None),
    "less": (less, np.less),
    "less_equal": (less_equal, np.less_equal),
    "greater": (lambda a, b: less(b, a), np.greater),
    "greater_equal": (lambda a, b: less_equal(b, a), np.greater_equal),
    "equal": (equal, np.equal),
    "not_equal": (lambda a, b: logical_not(equal(a, b)), np.not_equal),
    "logical_not": (logical_not, np.logical_not),
    "logical_and": (logical_and, np.logical_and),
    "logical_or": (logical_or, np.logical_or),
    "logical_xor": (lambda a, b: EITHER, np.logical_xor),
    "isnan": (lambda a: FALSE if a.finite else EITHER, np.isnan),
    "isinf": (lambda a: FALSE if a.finite else EITHER, np.isinf),
    "isfinite": (lambda a: TRUE if a.finite else EITHER, np.isfinite),
    "where": (where, None),
    "clip": (clip, None),
    "floor_divide": (unknown, np.floor_divide),
    "mod": (unknown, None),
    "floor_mod": (unknown, np.mod),
    "bitwise_and": (finite, np.bitwise_and),
    "bitwise_or": (finite, np.bitwise_or),
    "bitwise_xor": (finite, np.bitwise_xor),
    "bitwise_not": (finite, np.bitwise_not),
    "left_shift": (finite, None),
    "right_shift": (finite, None),
    **dict.fromkeys(("tan", "acos", "asin", "acosh", "atanh", "sinh", "cosh", "atan2"), (unknown, None)),
}  # fmt: skip


def evaluated(function: Any, values: Sequence[ValueRange], dtypes: Sequence[str]) -> ValueRange | None:
    """The result for constant operands, computed by NumPy in the operands' types; None if not computable."""
    if function is None or not all(value.is_constant for value in values):
        return None
    try:
        with np.errstate(all="ignore"):
            arguments = [
                np.asarray(value.low).astype(dtype) for value, dtype in zip(values, dtypes, strict=True)
            ]
            return constant(np.asarray(function(*arguments)).reshape(())[()])
    except (TypeError, ValueError, OverflowError):  # types that NumPy does not know, such as bfloat16
        return None
