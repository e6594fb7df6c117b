"""Abstract values of tensor elements: an interval, whether they are finite, and the offset of a mask."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

# A mask adds or writes this value or less. Scores without a mask are assumed to be greater by more than 100,
# so that exp() of the difference is 0 in every floating-point type.
MASKED = -1e4

Number = float | int
INFINITY = math.inf


@dataclass(frozen=True)
class ValueRange:
    """Every element is in low..high; an infinite bound of finite elements means that no bound is known.

    finite: no element is infinite or NaN. offset: below 0 if every element is some number plus `offset`. up,
    down: elements may have the magnitude of a mask, above or below 0, because a mask or a constant of this
    magnitude contributed to them.
    """

    low: Number = -INFINITY
    high: Number = INFINITY
    finite: bool = True
    offset: Number = 0
    up: bool = False
    down: bool = False

    @property
    def is_constant(self) -> bool:
        """Whether all elements are equal to one known number."""
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
        """The offset (0 or less) that these elements contribute as a mask when they are added to a tensor."""
        return min(self.offset, self.high if self.high <= MASKED else 0) if self.known else 0


ANYTHING = ValueRange(finite=False)  # NaN too
FINITE = ValueRange()
ZERO = ValueRange(0, 0)


def constant(number: Any) -> ValueRange:
    """The abstract value of elements that all equal `number`, a Python or NumPy scalar."""
    plain = number.item() if hasattr(number, "item") else number
    if isinstance(plain, float) and math.isnan(plain):
        return ANYTHING
    plain = int(plain) if isinstance(plain, bool) else plain
    finite = not (isinstance(plain, float) and math.isinf(plain))
    return ValueRange(plain, plain, finite, up=plain >= -MASKED, down=plain <= MASKED)


def like(value: ValueRange, *operands: ValueRange) -> ValueRange:
    """`value` as the result of a product or sum of `operands`.

    If an operand may have the magnitude of a mask, so may the result, with either sign.
    """
    large = any(operand.up or operand.down for operand in operands) and not value.is_constant
    return replace(value, up=large, down=large) if large else value


def within(low: Number, high: Number) -> ValueRange:
    """The abstract value of finite elements in low..high."""
    return ValueRange(low, high)


def of_dtype(dtype: str) -> ValueRange:
    """The abstract value of any finite number of type `dtype`."""
    if dtype == "bool":
        return within(0, 1)
    if dtype.startswith(("int", "uint")):
        info = np.iinfo(dtype)
        return within(int(info.min), int(info.max))
    return FINITE


def of_array(array: Any) -> ValueRange:
    """The abstract value of the elements of a constant tensor."""
    if array.size == 0:
        return ZERO
    if array.dtype.kind not in "biuf":  # bfloat16 and the like are of NumPy's kind V
        array = array.astype("float32")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        first = array.reshape(-1)[0]
        return constant(first) if bool((array == first).all()) else ANYTHING
    low, high = array.min().item(), array.max().item()
    return join(constant(low), constant(high))


def join(*values: ValueRange) -> ValueRange:
    """The union of `values`: the abstract value of elements that belong to any of them."""
    return ValueRange(
        min(value.low for value in values),
        max(value.high for value in values),
        all(value.finite for value in values),
        max(value.drop for value in values),
        any(value.up for value in values),
        any(value.down for value in values),
    )


def least(dtype: str) -> Number:
    """The least value of a type, the neutral element of maximum; -infinity for floating-point types."""
    return float(-INFINITY) if is_float(dtype) else of_dtype(dtype).low


def greatest(dtype: str) -> Number:
    """The greatest value of a type, the neutral element of minimum; infinity for floating-point types."""
    return INFINITY if is_float(dtype) else of_dtype(dtype).high


def is_float(dtype: str) -> bool:
    """Whether `dtype` is a floating-point type, bfloat16 included."""
    return dtype.startswith(("float", "bfloat"))


def fitted(value: ValueRange, dtype: str) -> ValueRange:
    """`value` in type `dtype`; integers wrap: outside the type's range, any integer of it is possible."""
    if is_float(dtype):
        return value
    type_range = of_dtype(dtype)
    if value.known and value.low >= type_range.low and value.high <= type_range.high:
        return replace(value, low=math.floor(value.low), high=math.ceil(value.high))
    return type_range
