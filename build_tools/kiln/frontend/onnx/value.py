"""A tensor of an ONNX graph whose elements are known before it runs: numbers, and expressions of sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import tirx


class NotKnownError(Exception):
    """A value that cannot be said before the model runs."""


@dataclass(frozen=True)
class Ratio:
    """An element of a floating-point value that depends on a size: top / bottom, bottom > 0."""

    top: Any
    bottom: int


@dataclass(frozen=True)
class Value:
    """A tensor whose elements are known: `items` holds int, bool, float, TIR expressions and Ratios.

    dtype: the NumPy name of its ONNX type. of_shape: whether a shape went into it; what is constant in the
    file itself stays as the file has it.
    """

    items: npt.NDArray[Any]
    dtype: str
    of_shape: bool = True

    @property
    def is_constant(self) -> bool:
        """Whether every element is a number."""
        return all(isinstance(item, (int, float)) for item in self.items.reshape(-1))

    def numpy(self) -> npt.NDArray[Any]:
        """The tensor; for constant values."""
        return self.items.astype(self.dtype)

    def extents(self) -> list[Any]:
        """The elements of a vector of whole numbers, such as a shape."""
        return list(self.items.reshape(-1))


def from_array(array: npt.NDArray[Any], of_shape: bool = False) -> Value:
    """The value of a constant tensor."""
    items = np.empty(array.shape, object)
    items[...] = array.astype(object)
    return Value(items, str(array.dtype), of_shape)


def from_items(items: Sequence[Any], dtype: str = "int64") -> Value:
    """A vector of numbers and expressions."""
    array = np.empty(len(items), object)
    array[:] = [int(item) if isinstance(item, tirx.IntImm) else item for item in items]
    return Value(array, dtype)
