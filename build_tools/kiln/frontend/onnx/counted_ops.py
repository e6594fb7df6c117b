"""Converters of ONNX operators whose results have a size that is in the data (kiln.frontend.counted).

Converters have the interface of kiln.frontend.onnx.ops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from kiln.frontend.counted import select, span
from kiln.frontend.counted.sizes import counted_size
from kiln.frontend.counted.suppression import Suppression, suppress
from kiln.frontend.counted.unique import distinct
from kiln.frontend.onnx.node import Node, prims, shape_expr, smaller
from kiln.frontend.symbols import Extent

op = relax.op


def non_zero(node: Node) -> Any:
    """NonZero: indices of the elements that are not zero, shape (rank, count)."""
    data, emit = node.tensor(0), node.builder.emit
    if not node.shape(0):  # of a scalar, ONNX Runtime finds the position 0
        data = emit(op.reshape(data, shape_expr([1])))
    found = select.positions(node.builder, node.symbols, node.outputs[0], data)
    return op.permute_dims(found, [1, 0])


def compress(node: Node) -> Any:
    """Compress: the slices along an axis where a condition is true; without an axis, of the flat input."""
    data, shape, emit = node.tensor(0), node.shape(0), node.builder.emit
    axis = node.attributes.get("axis")
    if axis is None:
        data, axis, shape = emit(op.reshape(data, shape_expr([node.symbols.product(shape)]))), 0, [0]
    rows = select.positions(node.builder, node.symbols, node.outputs[0], node.tensor(1))
    places = emit(op.reshape(rows, shape_expr([rows.ty.shape[0]])))
    return op.take(data, places, int(axis) % len(shape), mode="clip")


def non_max_suppression(node: Node) -> Any:
    """NonMaxSuppression: rows (image, class, box) of the boxes that are kept."""
    images, classes, boxes = node.shape(1)
    each: Extent = 0
    if node.has(2):
        limit = node.whole(2)
        each = boxes if limit is None else _fewer(node, limit[0], boxes)
    if each == 0:
        raise ValueError(
            "its input max_output_boxes_per_class is 0 or left out, which means 0: it keeps no box, allowed: "
            "1 and more"
        )
    asked = Suppression(
        node.tensor(0),
        node.tensor(1),
        _scalar(node, 2, "int64", 0),
        _scalar(node, 3, "float32", 0.0),
        _scalar(node, 4, "float32", None),
        bool(node.attributes.get("center_point_box", 0)),
    )
    most = node.symbols.product([images, classes, each])
    return suppress(node.builder, node.symbols, node.outputs[0], asked, most)


def _fewer(node: Node, limit: Extent, boxes: Extent) -> Extent:
    """The greatest number of boxes kept of one class."""
    limit = max(limit, 0) if isinstance(limit, int) else limit
    return node.symbols.simplify(smaller(limit, boxes))


def _scalar(node: Node, index: int, dtype: str, default: float | None) -> Any:
    """Input `index`, a number, as a tensor of one axis; `default` where the node has none."""
    if not node.has(index):
        return None if default is None else relax.const(np.array([default], dtype), dtype)
    value = node.tensor(index)
    one = node.builder.emit(op.reshape(value, shape_expr([1])))
    return one if str(value.ty.dtype) == dtype else node.builder.emit(op.astype(one, dtype))


def unique(node: Node) -> Any:
    """Unique: the distinct elements, or slices along an axis, where they are, and how many of each."""
    data, shape, emit = node.tensor(0), node.shape(0), node.builder.emit
    axis, product = node.attributes.get("axis"), node.symbols.product
    if axis is None:
        data = emit(op.reshape(data, shape_expr([product(shape)])))
        shape, axis = [product(shape)], 0
    axis = int(axis) % len(shape)
    others = [at for at in range(len(shape)) if at != axis]
    rows = emit(op.permute_dims(data, [axis, *others])) if axis else data
    rows = emit(op.reshape(rows, shape_expr([shape[axis], product([shape[at] for at in others])])))
    ascending = bool(node.attributes.get("sorted", 1))
    found = distinct(node.builder, node.symbols, node.outputs[0], rows, ascending)
    values = emit(op.take(data, found.first, axis, mode="clip"))
    return relax.Tuple([values, found.first, found.kinds, found.counts][: len(node.outputs)])


def range_(node: Node) -> Any:
    """Range with limits that are known only when the model runs."""
    start, limit, step = (node.builder.emit(op.reshape(node.tensor(n), shape_expr([1]))) for n in range(3))
    return span.arange(node.builder, node.symbols, node.outputs[0], start, limit, step)


def top_k(node: Node) -> Any:
    """TopK whose `k` is known only when the model runs: the sorted axis, of which k elements are kept."""
    data, shape, emit = node.tensor(0), node.shape(0), node.builder.emit
    axis, largest = int(node.attributes.get("axis", -1)) % len(shape), bool(node.attributes.get("largest", 1))
    node.attributes.get("sorted", 1)  # sorted is a valid order where none is asked for
    count = emit(op.reshape(node.tensor(1), shape_expr([1])))
    most = node.symbols.most_counted(node.outputs[0], shape[axis])
    size = counted_size(node.builder, node.symbols, node.outputs[0], count, most)
    both = emit(op.topk(data, -1, axis, "both", largest, "int64"))
    found = [emit(relax.TupleGetItem(both, index)) for index in (0, 1)]
    ends = [axis], prims([0]), prims([size])
    return relax.Tuple([emit(op.strided_slice(item, *ends, assume_inbound=True)) for item in found])


CONVERTERS: dict[str, Callable[[Node], Any]] = {
    "Compress": compress,
    "NonMaxSuppression": non_max_suppression,
    "NonZero": non_zero,
    "Unique": unique,
}
