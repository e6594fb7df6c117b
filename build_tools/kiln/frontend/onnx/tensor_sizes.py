"""Sizes, elements and bytes of the tensors of an ONNX graph, from their types."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from onnx import helper


def placeholder(shape: Iterable[Any]) -> Any:
    """An array of zeros of `shape` that needs memory for one element only."""
    import numpy as np

    return np.broadcast_to(np.float32(0), tuple(shape))


def sizes_of(kind: Any) -> list[int | str] | None:
    """The shape in a TypeProto: numbers, names of dynamic sizes, "?" for a missing size; None: no shape."""
    if kind is None or not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
        return None
    return [
        int(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?"
        for dim in kind.tensor_type.shape.dim
    ]


def elements_of(kind: Any) -> int | None:
    """The number of elements of a tensor; None if a size is dynamic."""
    shape = sizes_of(kind)
    if shape is None or any(isinstance(size, str) for size in shape):
        return None
    return math.prod(int(size) for size in shape)


def tensor_bytes(kind: Any) -> int | None:
    """The number of bytes of a tensor; None if a size is dynamic."""
    elements = elements_of(kind)
    return None if elements is None else bytes_of([elements], kind.tensor_type.elem_type)


def bytes_of(shape: Iterable[int], dtype: int) -> int:
    """The number of bytes of a tensor; a string, whose size is not fixed, counts as 16 bytes."""
    try:
        item = helper.tensor_dtype_to_np_dtype(dtype).itemsize
    except KeyError:
        item = 16
    return int(math.prod(shape) * max(item, 1))
