"""Range checks of constant ONNX inputs: axes and indices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx import numpy_helper

from kiln.frontend.onnx.attributes import integer_attribute

_AXIS_INPUTS = {"CumProd": 1, "CumSum": 1}
_INDEXED = ("Gather", "GatherElements", "ScatterElements")


def check_axes_and_indices(
    node: onnx.NodeProto, shape: Sequence[int | str], values: Mapping[str, onnx.TensorProto]
) -> None:
    """Raise ValueError for a constant axis or index outside of the first input, whose shape is `shape`.

    `values`: known constants, by name. Inputs on which the shape of the result depends are not checked here,
    but by ONNX's shape inference.
    """
    axis_input = _AXIS_INPUTS.get(node.op_type)
    if axis_input is not None and axis_input < len(node.input):
        for axis in _numbers(values.get(node.input[axis_input])):
            if not -len(shape) <= axis < len(shape):
                raise ValueError(f"its axis is {axis}, allowed: {-len(shape)}..{len(shape) - 1}")
    if node.op_type in _INDEXED:
        axis = integer_attribute(node, "axis", 0)
        size = shape[axis] if -len(shape) <= axis < len(shape) else None
        if not isinstance(size, int):
            return
        for index in _numbers(values.get(node.input[1])):
            if not -size <= index < size:
                raise ValueError(
                    f"it selects index {index} on axis {axis} of size {size}, allowed: {-size}..{size - 1}"
                )


def _numbers(tensor: onnx.TensorProto | None) -> list[Any]:
    """The elements of a constant; none where the tensor is not one."""
    return [] if tensor is None else numpy_helper.to_array(tensor).reshape(-1).tolist()
