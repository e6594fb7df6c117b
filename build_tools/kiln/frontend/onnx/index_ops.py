"""Converters of ONNX operators that gather and scatter by indices.

Negative indices count from the end of an axis; TVM 0.27 normalises them by a call into its virtual machine. A
constant index outside of its axis is refused (here and in kiln.frontend.onnx.amounts), as by ONNX Runtime.
For indices known only at run time see kernels/operators/indices.py, and lower/index_checks.py for models with
checks. Converters have the interface of kiln.frontend.onnx.ops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tvm import relax

from kiln.extents import Extent
from kiln.frontend.onnx.agreement import agreed, may_agree
from kiln.frontend.onnx.node import Node, as_tensor
from kiln.frontend.onnx.value import Value, from_items

_REDUCTIONS = {"none": "update", "add": "add", "mul": "mul", "min": "min", "max": "max"}


def gather(node: Node) -> Any:
    """Gather: slices along an axis. Negative indices that are known at build time become positive ones."""
    axis = int(node.attributes.get("axis", 0))
    data, size = node.tensor(0), node.shape(0)[axis]
    constant_indices = node.elements(1) if node.inputs[1] in node.values else None
    if constant_indices is not None:
        symbols = node.symbols
        placed = [index + size if symbols.holds(index < 0) else index for index in constant_indices]
        if all(symbols.holds(index >= 0) for index in placed):
            shape = node.values[node.inputs[1]].items.shape
            items = from_items([symbols.simplify(index) for index in placed]).items.reshape(shape)
            return relax.op.take(data, as_tensor(Value(items, "int64")), axis)
    return relax.op.take(data, _without_negative(node.tensor(1), [size]), axis, mode="clip")


def gather_elements(node: Node) -> Any:
    """GatherElements: single elements along an axis."""
    axis = int(node.attributes.get("axis", 0))
    indices = _without_negative(node.tensor(1), [node.shape(0)[axis]])
    return relax.op.gather_elements(node.tensor(0), indices, axis)


def gather_nd(node: Node) -> Any:
    """GatherND: slices at positions along several axes."""
    skipped = int(node.attributes.get("batch_dims", 0))
    indices = _index_tuples(node, _addressed_sizes(node, skipped))
    return relax.op.gather_nd(node.tensor(0), indices, skipped)


def scatter_elements(node: Node) -> Any:
    """ScatterElements: writes single elements along an axis."""
    axis = int(node.attributes.get("axis", 0))
    indices = _without_negative(node.tensor(1), [node.shape(0)[axis]])

    def scattered(data: Any, values: Any, reduction: str) -> Any:
        return relax.op.scatter_elements(data, indices, values, axis, reduction)

    return _scatter_by_reduction(node, node.tensor(2), scattered)


def scatter_nd(node: Node) -> Any:
    """ScatterND: writes slices at positions along several axes."""
    tuples, values = _index_tuples(node, _addressed_sizes(node, 0)), node.tensor(2)
    index_shape = node.shape(1)
    required, shape = [*index_shape[:-1], *node.shape(0)[index_shape[-1] :]], node.shape(2)
    if len(required) == len(shape) and all(map(partial(may_agree, node.symbols), shape, required)):
        values = agreed(node.builder, node.symbols, node.outputs[0], values, required)
    return _scatter_by_reduction(
        node, values, lambda data, shape, reduction: relax.op.scatter_nd(data, tuples, shape, reduction)
    )


def _scatter_by_reduction(node: Node, values: Any, scattered: Callable[[Any, Any, str], Any]) -> Any:
    """A scatter of `values` into the data, by the node's reduction; `scattered` computes it.

    Truth values are scattered as the numbers 0 and 1: their sum is whether one is true, their product
    whether all are.
    """
    data, reduction, emit = node.tensor(0), _reduction(node), node.builder.emit
    if str(data.ty.dtype) != "bool" or reduction == "update":
        return scattered(data, values, reduction)
    numbers = [emit(relax.op.astype(tensor, "int8")) for tensor in (data, values)]
    result = emit(scattered(numbers[0], numbers[1], {"add": "max", "mul": "min"}.get(reduction, reduction)))
    return relax.op.astype(result, "bool")


def _addressed_sizes(node: Node, skipped: int) -> list[Extent]:
    """The sizes of the axes that one index tuple addresses, after `skipped` batch axes.

    Raises ValueError if the length of the tuple is not known before the model runs.
    """
    count = node.shape(1)[-1]
    if not isinstance(count, int):
        raise ValueError(f"indices of {count} axes: how many is not known before the model runs")
    return node.shape(0)[skipped : skipped + count]


def _reduction(node: Node) -> str:
    value = node.attributes.get("reduction", b"none")
    return _REDUCTIONS[value.decode() if isinstance(value, bytes) else value]


def _index_tuples(node: Node, sizes: Sequence[Extent]) -> Any:
    """The index tuples (second input) with negative indices normalised, for axes of `sizes`.

    Raises ValueError for a constant index outside of its axis.
    """
    values = node.constant(1)
    if values is not None and all(isinstance(size, int) for size in sizes):
        for axis, (column, size) in enumerate(zip(values.reshape(-1, len(sizes)).T, sizes, strict=True)):
            outside = column[(column < -size) | (column >= size)]
            if outside.size:
                raise ValueError(
                    f"it selects index {outside[0]} by column {axis} of its indices, for an axis of size "
                    f"{size}, allowed: {-size}..{size - 1}"
                )
    return _without_negative(node.tensor(1), sizes)


def _without_negative(indices: Any, sizes: Sequence[Extent]) -> Any:
    """Normalise negative indices by adding the size of the axis.

    `sizes`: one size, or one per element of the last axis of `indices`.
    """
    dtype = str(indices.ty.dtype)
    if dtype.startswith("uint"):
        return indices
    negative = relax.op.less(indices, relax.const(0, dtype))
    size = _sizes_tensor(sizes, dtype)
    if not len(indices.ty.shape):  # else the result would get the axis of `size`
        size = relax.op.reshape(size, relax.ShapeExpr([]))
    return relax.op.where(negative, relax.op.add(indices, size), indices)


def _sizes_tensor(sizes: Sequence[Extent], dtype: str) -> Any:
    if len(sizes) == 1 and isinstance(sizes[0], int):
        return relax.const(sizes[0], dtype)
    return as_tensor(Value(from_items(sizes).items, dtype))


CONVERTERS: dict[str, Callable[[Node], Any]] = {
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "Scatter": scatter_elements,  # its name before opset 11
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
}
