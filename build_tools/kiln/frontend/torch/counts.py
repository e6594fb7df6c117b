"""torch.bincount of places: its result has a fixed size where these are known to be below `minlength`.

PyTorch's exporter takes the size from the greatest number, which only the run knows. Numbers of experts,
which a mixture of experts counts, are places along an axis of a fixed size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kiln.frontend.torch.onnx_steps import ints
from kiln.frontend.torch.present import aten as own_operators

_INT64 = 7  # of ONNX's element types
# ONNX operators whose results are elements of their first input.
_MOVES = {
    "Expand",
    "Flatten",
    "Gather",
    "GatherElements",
    "Identity",
    "Reshape",
    "Slice",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
}


def counts() -> Mapping[Any, Callable[..., Any]]:
    """The operators of this module, for torch.onnx.export's `custom_translation_table`."""
    return {own_operators().bincount.default: bincount}


def bincount(self: Any, weights: Any = None, minlength: int = 0) -> Any:
    """aten::bincount of numbers [n]: how often each occurs; the exporter's form where the size is unknown."""
    from onnxscript import opset18 as op
    from onnxscript.function_libs.torch_lib.ops.core import aten_bincount

    most = below(self)
    if weights is not None or most is None or most > minlength:
        return aten_bincount(self, weights, minlength)
    places = op.Cast(self, to=_INT64)
    ones = op.Expand(op.Constant(value_int=1), op.Shape(places))
    zeros = op.Expand(op.Constant(value_int=0), ints(minlength))
    return op.ScatterElements(zeros, places, ones, axis=0, reduction="add")


def below(value: Any) -> int | None:
    """A number above all elements of `value`, which are places along an axis of fixed size; else None."""
    node = value.producer()
    if node is None or node.domain:
        return None
    if node.op_type in _MOVES:
        return below(node.inputs[0])
    if node.op_type == "Cast":
        is_whole = node.inputs[0].dtype is not None and node.inputs[0].dtype.is_integer()
        return below(node.inputs[0]) if is_whole else None
    is_place = node.op_type in ("ArgMax", "ArgMin") or (node.op_type == "TopK" and value is node.outputs[1])
    if not is_place or node.inputs[0].shape is None:
        return None
    axis = node.attributes.get_int("axis", -1 if node.op_type == "TopK" else 0)
    size = node.inputs[0].shape[axis]
    return size if isinstance(size, int) else None
