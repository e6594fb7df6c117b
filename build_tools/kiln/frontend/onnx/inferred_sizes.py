"""Rewrites nodes whose sizes ONNX 1.23 infers otherwise than ONNX Runtime computes them, so that both agree.

Without it, constants that are folded from such a size would be wrong, and so would all sizes after it.

- Pools with ceil_mode: the last window may end beyond the tensor, but one that would begin there has no
  element. PyTorch, ONNX Runtime and operator set 22 leave it out; ONNX counts it for older operator sets.
- Resize by scales: ONNX multiplies in float64, where 10 * 0.7 is less than 7 and rounded down to 6. ONNX
  Runtime multiplies in float32, where it is 7.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from kiln.config.sizes import ceil_div
from kiln.frontend.onnx.inference import infer_types
from kiln.frontend.onnx.window_pads import windows_rounded_up
from kiln.onnx_domains import opset_of

_COUNTS_WINDOWS_RIGHTLY = 22  # the operator set since which ONNX counts the windows of pools as it specifies
_TAKES_SIZES = 11  # the first operator set in which Resize has sizes in place of scales
_LACKS_SCALES = 13  # … and since which it may lack the scales; before, they are empty
_Sizes = Mapping[str, list[int]]  # by tensor; 0 for a size that is not known


@dataclass(frozen=True)
class _KnownSizes:
    """The facts of a graph that repairs read: sizes as ONNX infers them, constants, and the operator set."""

    sizes: _Sizes
    constants: Mapping[str, onnx.TensorProto]
    version: int


def repair(model: onnx.ModelProto) -> None:
    """Rewrite, in place, the nodes of `model` whose sizes ONNX infers wrongly.

    The shapes of the inputs must be in `model`. Nodes with unknown sizes, and nodes in bodies, stay as they
    are.
    """
    version = opset_of(model)
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            constants[node.output[0]] = node.attribute[0].t
    suspects = list(_suspects(model, version))
    while suspects:
        graph = _KnownSizes(inferred_sizes(model), constants, version)
        for position, (node, repaired) in enumerate(suspects):
            added = repaired(node, graph)
            if added is not None:
                model.graph.initializer.extend(added)
                suspects = suspects[position + 1 :]
                break
        else:
            break


_Repair = Callable[[onnx.NodeProto, _KnownSizes], "list[onnx.TensorProto] | None"]


def _suspects(model: onnx.ModelProto, version: int) -> Iterator[tuple[onnx.NodeProto, _Repair]]:
    """The nodes whose sizes may be inferred wrongly, each with the function that repairs it."""
    for node in model.graph.node:
        pool = node.op_type in ("AveragePool", "LpPool", "MaxPool") and version < _COUNTS_WINDOWS_RIGHTLY
        if pool and any(attribute.name == "ceil_mode" and attribute.i for attribute in node.attribute):
            yield node, _repair_pool
        if node.op_type == "Resize" and version >= _TAKES_SIZES and len(node.input) > 2 and node.input[2]:
            yield node, _repair_resize


def inferred_sizes(model: onnx.ModelProto) -> _Sizes:
    """The sizes of the tensors of `model`'s outer graph, as ONNX infers them; none for an unknown rank."""
    try:
        graph = infer_types(model, data_prop=True).graph
    except Exception:  # ONNX raises exception types of its own; folding the constants reports the error
        return {}
    values = [*graph.input, *graph.value_info, *graph.output]
    kinds = {value.name: value.type.tensor_type for value in values}
    return {
        name: [dim.dim_value for dim in kind.shape.dim]
        for name, kind in kinds.items()
        if kind.HasField("shape")
    }


def _repair_pool(node: onnx.NodeProto, graph: _KnownSizes) -> list[onnx.TensorProto] | None:
    """Replace ceil_mode of a pool whose last window has no element; None for other pools.

    With auto_pad SAME_UPPER or SAME_LOWER there are ceil(size / stride) windows in any case.
    """
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    spatial, kernel = graph.sizes.get(node.input[0], [])[2:], attributes.get("kernel_shape", [])
    mode = attributes.pop("auto_pad", b"NOTSET")
    if mode in (b"SAME_UPPER", b"SAME_LOWER"):
        _set_attributes(node, {**attributes, "auto_pad": mode, "ceil_mode": 0})
        return []
    if not spatial or len(spatial) != len(kernel):
        return None
    rank, empty = len(spatial), False
    strides, dilations = (attributes.get(name) or [1] * rank for name in ("strides", "dilations"))
    pads = list((mode == b"NOTSET" and attributes.get("pads")) or [0] * 2 * rank)
    if not all(spatial) or not len(strides) == len(dilations) == len(pads) // 2 == rank or min(strides) < 1:
        return None
    counted = bool(attributes.get("count_include_pad", 0)) and any(pads)
    for axis, size in enumerate(spatial):
        before, after, reach = pads[axis], pads[rank + axis], (kernel[axis] - 1) * dilations[axis] + 1
        room = before + size + after - reach
        count = windows_rounded_up(size, reach, strides[axis], before, after)
        empty |= count <= ceil_div(room, strides[axis])  # ONNX counts one more
        beyond = (count - 1) * strides[axis] - room
        if beyond > 0 and counted:
            return None  # elements beyond the padding do not count, and elements of longer padding would
        pads[rank + axis] += max(beyond, 0)
    if not empty:
        return None
    if "count_include_pad" in attributes and not counted:
        attributes["count_include_pad"] = 0
    _set_attributes(node, {**attributes, "ceil_mode": 0, "pads": pads})
    return []


def _repair_resize(node: onnx.NodeProto, graph: _KnownSizes) -> list[onnx.TensorProto] | None:
    """Replace the scales of a Resize by the sizes that they mean; None where ONNX infers those sizes.

    The two differ only where a product is within rounding of an integer: sizes have the same scales then.
    """
    constant, old = graph.constants.get(node.input[2]), graph.sizes.get(node.input[0], [])
    inferred = graph.sizes.get(node.output[0], [])
    if constant is None or not old or not all(old) or len(inferred) != len(old):
        return None
    scales, rank = numpy_helper.to_array(constant).reshape(-1), len(old)
    axes: Any = next(
        (list(attribute.ints) for attribute in node.attribute if attribute.name == "axes"), range(rank)
    )
    axes = [axis % rank for axis in axes]
    if len(scales) != len(axes):
        return None
    new = [
        math.floor(np.float32(scale) * np.float32(old[axis]))
        for scale, axis in zip(scales, axes, strict=True)
    ]
    if new == [inferred[axis] for axis in axes]:
        return None
    sizes = numpy_helper.from_array(np.array(new, "int64"), f"{node.output[0]}/sizes")
    no_scales = [numpy_helper.from_array(np.zeros(0, "float32"), f"{node.output[0]}/scales")]
    if graph.version >= _LACKS_SCALES:
        no_scales = []
    names = [node.input[0], node.input[1], no_scales[0].name if no_scales else "", sizes.name]
    del node.input[:]
    node.input.extend(names)
    # Scales had no policy, and sizes would have one.
    attributes = [attribute for attribute in node.attribute if attribute.name != "keep_aspect_ratio_policy"]
    _set_attributes(node, {attribute.name: helper.get_attribute_value(attribute) for attribute in attributes})
    return [*no_scales, sizes]


def _set_attributes(node: onnx.NodeProto, attributes: Mapping[str, Any]) -> None:
    del node.attribute[:]
    node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
