"""Converters of ONNX operators whose results have a size that is in the data (kiln.frontend.counted).

Converters have the interface of kiln.frontend.onnx.ops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from kiln.frontend.counted import select
from kiln.frontend.onnx.node import Node, shape_expr

op = relax.op


def non_zero(node: Node) -> Any:
    """NonZero: indices of the elements that are not zero, shape (rank, count)."""
    data, emit = node.tensor(0), node.builder.emit
    found = select.positions(node.builder, node.symbols, node.outputs[0], data)
    return emit(op.permute_dims(found, [1, 0])) if len(node.shape(0)) else found


def compress(node: Node) -> Any:
    """Compress: the slices along an axis where a condition is true; without an axis, of the flat input."""
    data, shape, emit = node.tensor(0), node.shape(0), node.builder.emit
    axis = node.attributes.get("axis")
    if axis is None:
        data, axis, shape = emit(op.reshape(data, shape_expr([node.symbols.product(shape)]))), 0, shape[:0]
    rows = select.positions(node.builder, node.symbols, node.outputs[0], node.tensor(1))
    places = emit(op.reshape(rows, shape_expr([rows.ty.shape[0]])))
    return op.take(data, places, int(axis) % len(data.ty.shape), mode="clip")


CONVERTERS: dict[str, Callable[[Node], Any]] = {
    "Compress": compress,
    "NonZero": non_zero,
}
