"""ONNX operators that read and write where indices say.

Negative indices count from the end; TVM 0.27 asks its virtual machine where that is. Indices that come at
run time are held within their axis: one beyond it takes the last element, and no memory is touched that is
not the tensor's. Converters are as in kiln.frontend.onnx_ops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax

from kiln.frontend.onnx_node import Node, as_tensor
from kiln.frontend.onnx_value import Value, from_items
from kiln.frontend.symbols import Extent

_REDUCTIONS = {"none": "update", "add": "add", "mul": "mul", "min": "min", "max": "max"}


def gather(node: Node) -> Any:
    """Whole slices of an axis; known indices, such as a place counted from the end, need no check."""
    axis = int(node.attributes.get("axis", 0))
    data, size = node.tensor(0), node.shape(0)[axis]
    known = node.whole(1) if node.inputs[1] in node.values else None
    if known is not None:
        symbols = node.symbols
        placed = [index + size if symbols.holds(index < 0) else index for index in known]
        if all(symbols.holds(index >= 0) for index in placed):
            shape = node.values[node.inputs[1]].items.shape
            items = from_items([symbols.simplify(index) for index in placed]).items.reshape(shape)
            return relax.op.take(data, as_tensor(Value(items, "int64")), axis)
    return relax.op.take(data, _counted(node.tensor(1), [size]), axis, mode="clip")


def gather_elements(node: Node) -> Any:
    """Single elements along an axis."""
    axis = int(node.attributes.get("axis", 0))
    places = _within(node.tensor(1), [node.shape(0)[axis]])
    return relax.op.gather_elements(node.tensor(0), places, axis)


def gather_nd(node: Node) -> Any:
    """Slices at places of several axes."""
    skipped = int(node.attributes.get("batch_dims", 0))
    places = _within(node.tensor(1), _reached(node, skipped))
    return relax.op.gather_nd(node.tensor(0), places, skipped)


def scatter_elements(node: Node) -> Any:
    """Single elements along an axis, written."""
    axis = int(node.attributes.get("axis", 0))
    places = _within(node.tensor(1), [node.shape(0)[axis]])
    return relax.op.scatter_elements(node.tensor(0), places, node.tensor(2), axis, _reduction(node))


def scatter_nd(node: Node) -> Any:
    """Slices at places of several axes, written."""
    places = _within(node.tensor(1), _reached(node, 0))
    return relax.op.scatter_nd(node.tensor(0), places, node.tensor(2), _reduction(node))


def _reached(node: Node, skipped: int) -> list[Extent]:
    """The sizes of the axes that a row of indices names."""
    count = node.shape(1)[-1]
    if not isinstance(count, int):
        raise ValueError(f"indices of {count} axes: how many is not known before the model runs")
    return node.shape(0)[skipped : skipped + count]


def _reduction(node: Node) -> str:
    value = node.attributes.get("reduction", b"none")
    return _REDUCTIONS[value.decode() if isinstance(value, bytes) else value]


def _counted(indices: Any, sizes: Sequence[Extent]) -> Any:
    """Indices from the first element on, the last axis of them for axes of these sizes."""
    dtype = str(indices.ty.dtype)
    if dtype.startswith("uint"):
        return indices
    negative = relax.op.less(indices, relax.const(0, dtype))
    return relax.op.where(negative, relax.op.add(indices, _tensor(sizes, dtype)), indices)


def _within(indices: Any, sizes: Sequence[Extent]) -> Any:
    """The same, none of them outside."""
    dtype = str(indices.ty.dtype)
    last = _tensor([size - 1 for size in sizes], dtype)
    return relax.op.maximum(relax.op.minimum(_counted(indices, sizes), last), relax.const(0, dtype))


def _tensor(sizes: Sequence[Extent], dtype: str) -> Any:
    if len(sizes) == 1 and isinstance(sizes[0], int):
        return relax.const(sizes[0], dtype)
    return as_tensor(Value(from_items(sizes).items, dtype))


CONVERTERS: dict[str, Callable[[Node], Any]] = {
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
}
