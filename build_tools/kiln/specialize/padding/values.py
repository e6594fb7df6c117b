"""What the elements of a part of a tensor may hold: an interval, finite or not, and the offset of a mask."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

# A mask adds or writes this or less. Scores that are not masked are taken to lie above it by more than 100:
# exp() of the difference is then 0 in every floating-point type.
MASKED = -1e4

Number = float | int
INFINITY = math.inf


@dataclass(frozen=True)
class Value:
    """Every element lies in low..high; an infinite bound of finite elements means: no bound is known.

    finite: no element is infinite or NaN. offset: below 0 where each element is a number plus `offset`.
    up, down: elements may be of a mask's magnitude above or below 0, as a mask or such a constant went in.
    """

    low: Number = -INFINITY
    high: Number = INFINITY
    finite: bool = True
    offset: Number = 0
    up: bool = False
    down: bool = False

    @property
    def is_constant(self) -> bool:
        """Whether all elements are one known number."""
        return self.low == self.high and (self.finite or math.isinf(self.low))

    def equals(self, number: Number) -> bool:
        """Whether all elements are `number`."""
        return self.is_constant and self.low == number

    @property
    def known(self) -> bool:
        """Whether the bounds hold: no element is NaN."""
        return self.finite or self.is_constant

    @property
    def is_masked(self) -> bool:
        """Whether every element stands for "not there" before a softmax or a maximum."""
        return self.known and (self.offset <= MASKED or self.high <= MASKED)

    @property
    def drop(self) -> Number:
        """How far a mask moves what these elements are added to; 0 or less."""
        return min(self.offset, self.high if self.high <= MASKED else 0) if self.known else 0


ANYTHING = Value(finite=False)  # NaN too
FINITE = Value()
ZERO = Value(0, 0)


def constant(number: Any) -> Value:
    """The value of elements that all are `number`, a Python or NumPy scalar."""
    plain = number.item() if hasattr(number, "item") else number
    if isinstance(plain, float) and math.isnan(plain):
        return ANYTHING
    plain = int(plain) if isinstance(plain, bool) else plain
    finite = not (isinstance(plain, float) and math.isinf(plain))
    return Value(plain, plain, finite, up=plain >= -MASKED, down=plain <= MASKED)


def like(value: Value, *operands: Value) -> Value:
    """`value` as the result of a product or sum of operands: a mask's magnitude stays one, of either sign."""
    large = any(operand.up or operand.down for operand in operands) and not value.is_constant
    return replace(value, up=large, down=large) if large else value


def within(low: Number, high: Number) -> Value:
    """Finite elements in low..high."""
    return Value(low, high)


def of_dtype(dtype: str) -> Value:
    """All that a type can hold, without infinities and NaN."""
    if dtype == "bool":
        return within(0, 1)
    if dtype.startswith(("int", "uint")):
        info = np.iinfo(dtype)
        return within(int(info.min), int(info.max))
    return FINITE


def of_array(array: Any) -> Value:
    """What the elements of a constant may be."""
    if array.size == 0:
        return ZERO
    if array.dtype.kind not in "biuf":  # bfloat16 and the like are of NumPy's kind V
        array = array.astype("float32")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        first = array.reshape(-1)[0]
        return constant(first) if bool((array == first).all()) else ANYTHING
    low, high = array.min().item(), array.max().item()
    return join(constant(low), constant(high))


def join(*values: Value) -> Value:
    """What elements hold of which each is of one of `values`."""
    return Value(
        min(value.low for value in values),
        max(value.high for value in values),
        all(value.finite for value in values),
        max(value.drop for value in values),
        any(value.up for value in values),
        any(value.down for value in values),
    )


def least(dtype: str) -> Number:
    """The least number of a type: what no maximum sees."""
    return float(-INFINITY) if is_float(dtype) else of_dtype(dtype).low


def greatest(dtype: str) -> Number:
    """The greatest number of a type: what no minimum sees."""
    return INFINITY if is_float(dtype) else of_dtype(dtype).high


def is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))


def fitted(value: Value, dtype: str) -> Value:
    """`value` as `dtype` holds it: integers wrap where the interval leaves their range."""
    if is_float(dtype):
        return value
    whole = of_dtype(dtype)
    if value.known and value.low >= whole.low and value.high <= whole.high:
        return replace(value, low=math.floor(value.low), high=math.ceil(value.high))
    return whole
