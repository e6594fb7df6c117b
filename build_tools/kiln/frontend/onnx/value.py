"""Values of ONNX tensors that are known before the model runs: numbers, and expressions of sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper
from tvm import tirx


class NotKnownError(Exception):
    """The error for a value that is not known before the model runs."""


def not_known(name: str) -> ValueError:
    """The error of a converter for an input, the tensor `name`, that must be known before the model runs."""
    return ValueError(
        f"its input '{name}' is not known before the model runs: make it a constant of the file, or give an "
        "input of the model its value with 'constants' in the model's YAML"
    )


@dataclass(frozen=True)
class Ratio:
    """A floating-point element that depends on a size: top / bottom, with bottom > 0."""

    top: Any
    bottom: int


@dataclass(frozen=True)
class Value:
    """A tensor whose elements are known: `items` holds int, bool, float, TIR expressions and Ratios.

    dtype: NumPy name of the element type. of_shape: whether the value was computed from a shape; constants of
    the file are not.
    """

    items: npt.NDArray[Any]
    dtype: str
    of_shape: bool = True

    @property
    def is_constant(self) -> bool:
        """Whether every element is a number."""
        return all(isinstance(element, (int, float)) for element in self.items.reshape(-1))

    def numpy(self) -> npt.NDArray[Any]:
        """The value as a NumPy array; only for constant values."""
        return self.items.astype(self.dtype)

    def extents(self) -> list[Any]:
        """The elements as a flat list, such as the sizes of a shape."""
        return list(self.items.reshape(-1))


def from_array(array: npt.NDArray[Any], of_shape: bool = False) -> Value:
    """The value of a constant tensor; `of_shape`: see `Value`."""
    items = np.empty(array.shape, object)
    items[...] = array.astype(object)
    return Value(items, str(array.dtype), of_shape)


def from_items(items: Sequence[Any], dtype: str = "int64") -> Value:
    """The value of a vector of numbers and TIR expressions."""
    array = np.empty(len(items), object)
    array[:] = [int(item) if isinstance(item, tirx.IntImm) else item for item in items]
    return Value(array, dtype)


def array_of(node: onnx.NodeProto) -> Any:
    """The array of a Constant node. Raises ValueError for strings and sparse tensors."""
    attribute = node.attribute[0]
    value = helper.get_attribute_value(attribute)
    if attribute.name == "value":
        return numpy_helper.to_array(value)
    if attribute.name in ("value_int", "value_ints"):
        return np.array(value, np.int64)
    if attribute.name in ("value_float", "value_floats"):
        return np.array(value, np.float32)
    raise ValueError(f"a constant given by '{attribute.name}'")
