"""Values of padded elements, as padding.json states them and as tensors hold them."""

from __future__ import annotations

import math

from kiln.errors import KilnError
from kiln.specialize.padding.values import Number, greatest, is_float, least


def typed_fill(name: str, value: Number | str, dtype: str) -> Number:
    """The value of input `name`'s padded elements as a number of type `dtype`.

    Raises KilnError if the type cannot represent it.
    """
    number = float(value) if isinstance(value, str) else value
    if is_float(dtype):
        return float(number)
    low, high = least(dtype), greatest(dtype)
    if not math.isfinite(number) or number != int(number) or not low <= number <= high:
        raise KilnError(f"inputs.{name}.pad: {value}, allowed for {dtype}: whole numbers in {low}..{high}")
    return int(number)


def json_fill(value: Number) -> Number | str:
    """A fill as JSON data; infinities become strings, as JSON has no number for them."""
    return value if math.isfinite(value) else str(value)
