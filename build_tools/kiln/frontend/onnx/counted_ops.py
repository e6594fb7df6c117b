"""Converters of ONNX operators whose results have a size that is in the data (kiln.frontend.counted).

Converters have the interface of kiln.frontend.onnx.ops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from kiln.extents import Extent
from kiln.frontend.counted import select, span
from kiln.frontend.counted.sizes import counted_size
from kiln.frontend.counted.suppression import Suppression, suppress
from kiln.frontend.counted.unique import distinct
from kiln.frontend.onnx.node import Node, prims, shape_expr, smaller

op = relax.op


def non_zero(node: Node) -> Any:
    """NonZero: indices of the elements that are not zero, shape (rank, count); a scalar has one axis."""
    data = node.tensor(0)
    if not node.shape(0):
        data = node.builder.emit(op.reshape(data, shape_expr([1])))
    positions = select.positions(node.builder, node.symbols, node.outputs[0], data)
    return op.permute_dims(positions, [1, 0])


def compress(node: Node) -> Any:
    """Compress: the slices along an axis where a condition is true; without an axis, of the flat input."""
    data, shape, emit = node.tensor(0), node.shape(0), node.builder.emit
    axis = node.attributes.get("axis")
    if axis is None:
        data, axis, shape = emit(op.reshape(data, shape_expr([node.symbols.product(shape)]))), 0, [0]
    rows = select.positions(node.builder, node.symbols, node.outputs[0], node.tensor(1))
    indices = emit(op.reshape(rows, shape_expr([rows.ty.shape[0]])))
    return op.take(data, indices, int(axis) % len(shape), mode="clip")


def non_max_suppression(node: Node) -> Any:
    """NonMaxSuppression: a row (image, class, box) for each box that is kept."""
    images, classes, boxes = node.shape(1)
    per_class: Extent = 0
    if node.has(2):
        limit = node.elements(2)
        per_class = boxes if limit is None else _most_per_class(node, limit[0], boxes)
    if per_class == 0:
        raise ValueError(
            "its input max_output_boxes_per_class is 0 or left out, which means 0: it keeps no box, allowed: "
            "1 and more"
        )
    suppression = Suppression(
        node.tensor(0),
        node.tensor(1),
        _vector_of_one(node, 2, "int64", 0),
        _vector_of_one(node, 3, "float32", 0.0),
        _vector_of_one(node, 4, "float32", None),
        bool(node.attributes.get("center_point_box", 0)),
    )
    most = node.symbols.product([images, classes, per_class])
    return suppress(node.builder, node.symbols, node.outputs[0], suppression, most)


def _most_per_class(node: Node, limit: Extent, boxes: Extent) -> Extent:
    """The greatest number of boxes kept of one class."""
    limit = max(limit, 0) if isinstance(limit, int) else limit
    return node.symbols.simplify(smaller(limit, boxes))


def _vector_of_one(node: Node, index: int, dtype: str, default: float | None) -> Any:
    """Input `index`, a number, as a tensor of one axis; `default` where the node has none."""
    if not node.has(index):
        return None if default is None else relax.const(np.array([default], dtype), dtype)
    value = node.tensor(index)
    vector = node.builder.emit(op.reshape(value, shape_expr([1])))
    return vector if str(value.ty.dtype) == dtype else node.builder.emit(op.astype(vector, dtype))


def unique(node: Node) -> Any:
    """Unique: the distinct elements, or slices along an axis, their first positions, kinds and counts."""
    data, shape, emit = node.tensor(0), node.shape(0), node.builder.emit
    axis, product = node.attributes.get("axis"), node.symbols.product
    if axis is None:
        data = emit(op.reshape(data, shape_expr([product(shape)])))
        shape, axis = [product(shape)], 0
    axis = int(axis) % len(shape)
    other_axes = [index for index in range(len(shape)) if index != axis]
    rows = emit(op.permute_dims(data, [axis, *other_axes])) if axis else data
    rows = emit(op.reshape(rows, shape_expr([shape[axis], product([shape[index] for index in other_axes])])))
    ascending = bool(node.attributes.get("sorted", 1))
    distinct_rows = distinct(node.builder, node.symbols, node.outputs[0], rows, ascending)
    values = emit(op.take(data, distinct_rows.first, axis, mode="clip"))
    return relax.Tuple(
        [values, distinct_rows.first, distinct_rows.kinds, distinct_rows.counts][: len(node.outputs)]
    )


def range_(node: Node) -> Any:
    """Range with limits that are known only when the model runs."""
    start, limit, step = (node.builder.emit(op.reshape(node.tensor(n), shape_expr([1]))) for n in range(3))
    return span.arange(node.builder, node.symbols, node.outputs[0], start, limit, step)


def top_k(node: Node) -> Any:
    """TopK whose `k` is known only when the model runs: the first k elements of the sorted axis."""
    data, shape, emit = node.tensor(0), node.shape(0), node.builder.emit
    axis, largest = int(node.attributes.get("axis", -1)) % len(shape), bool(node.attributes.get("largest", 1))
    node.attributes.get("sorted", 1)  # sorted is a valid order where none is asked for
    count = emit(op.reshape(node.tensor(1), shape_expr([1])))
    most = node.symbols.most_counted(node.outputs[0], shape[axis])
    size = counted_size(node.builder, node.symbols, node.outputs[0], count, most)
    sorted_pair = emit(op.topk(data, -1, axis, "both", largest, "int64"))
    values_and_indices = [emit(relax.TupleGetItem(sorted_pair, index)) for index in (0, 1)]
    ends = [axis], prims([0]), prims([size])
    return relax.Tuple(
        [emit(op.strided_slice(tensor, *ends, assume_inbound=True)) for tensor in values_and_indices]
    )


CONVERTERS: dict[str, Callable[[Node], Any]] = {
    "Compress": compress,
    "NonMaxSuppression": non_max_suppression,
    "NonZero": non_zero,
    "Unique": unique,
}
