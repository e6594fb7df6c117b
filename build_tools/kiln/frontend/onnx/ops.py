"""Converters of ONNX operators that replace those of TVM 0.27, each for the reason in its docstring.

A converter is a function of a node that returns a Relax expression, or None to leave the node to TVM.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, tirx

from kiln.frontend.onnx import image_ops, index_ops, pad, recurrent, shape_ops
from kiln.frontend.onnx.node import Node

Converter = Callable[[Node], Any]


def clip(node: Node) -> Any:
    """Clip with bounds known at build time → one relax.clip.

    TVM 0.27 emits two opaque TIR functions (topi.maximum, topi.minimum), which graph passes cannot analyse:
    ReLU6 would be neither recognised nor fused.
    """
    bounds = []
    for index, key, default in ((1, "min", -np.inf), (2, "max", np.inf)):
        if not node.has(index):
            bounds.append(float(node.attributes.get(key, default)))
            continue
        value = node.constant(index)
        if value is None:
            return None
        # A NaN bound is ignored, as in ONNX Runtime.
        bounds.append(default if np.isnan(value.item()) else float(value.item()))
    low, high = bounds
    data = node.tensor(0)
    dtype = str(data.ty.dtype)
    if np.issubdtype(np.dtype(dtype), np.integer):
        info = np.iinfo(dtype)
        low, high = int(max(low, info.min)), int(min(high, info.max))
    elif np.isinf(low) and np.isinf(high):
        return data
    elif low == 0 and np.isinf(high):
        return relax.op.nn.relu(data)
    return relax.op.clip(data, low, high)


def lp_normalization(node: Node) -> Any:
    """LpNormalization: x / |x| along an axis. TVM 0.27 lacks it; onnxsim replaces it by ReduceL2 and Div."""
    x, axis = node.tensor(0), int(node.attributes.get("axis", -1))
    if int(node.attributes.get("p", 2)) == 1:
        return relax.op.divide(x, relax.op.sum(relax.op.abs(x), axis, keepdims=True))
    return relax.op.divide(x, relax.op.sqrt(relax.op.sum(relax.op.multiply(x, x), axis, keepdims=True)))


def one_hot(node: Node) -> Any:
    """OneHot in the type of its values; TVM 0.27 converts every floating-point type to float64."""
    values, depth = node.constant(2), node.known(1)[0]
    if values is None or not isinstance(depth, int):
        raise ValueError("its depth or its values are not known before the model runs")
    dtype = str(values.dtype)
    off, on = (relax.prim_value(tirx.const(item, dtype)) for item in values.reshape(-1).tolist())
    places = relax.op.astype(node.tensor(0), "int64")
    wrapped = relax.op.add(places, relax.const(depth, "int64"))
    places = relax.op.where(relax.op.less(places, relax.const(0, "int64")), wrapped, places)
    return relax.op.one_hot(places, on, off, depth, int(node.attributes.get("axis", -1)))


def non_max_suppression(node: Node) -> Any:
    """NonMaxSuppression is refused, as the shape of its result depends on data.

    TVM 0.27 emits a row for each box and class, and leaves rows after the selected ones uninitialised.
    """
    raise ValueError(
        "its result has a shape that is not known at build time: how many boxes it keeps is in the data"
    )


def _chain(function: Callable[[Any, Any], Any]) -> Converter:
    """Converter of Max or Min: `function`, pairwise; TVM 0.27 stacks the tensors and reduces a new axis."""

    def converter(node: Node) -> Any:
        found = node.tensor(0)
        for index in range(1, len(node.inputs)):
            found = function(found, node.tensor(index))
        return found

    return converter


OVERRIDES: dict[str, Converter] = {
    "Clip": clip,
    "Max": _chain(relax.op.maximum),
    "LpNormalization": lp_normalization,
    "Min": _chain(relax.op.minimum),
    "NonMaxSuppression": non_max_suppression,
    "OneHot": one_hot,
    "Pad": pad.pad,
    **image_ops.CONVERTERS,
    **index_ops.CONVERTERS,
    **recurrent.CONVERTERS,
    **shape_ops.CONVERTERS,
}
