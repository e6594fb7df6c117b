"""Converters of TFLite operators that reverse axes, which TVM 0.27 refuses or converts wrongly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from kiln.frontend.tflite.operands import TfliteOperands, const

op = relax.op


def reverse(node: TfliteOperands) -> Any:
    """REVERSE_V2 along any axes; TVM 0.27 supports one axis."""
    turned = node.raw(0)
    for axis in node.constant_array(1).reshape(-1).tolist():
        turned = node.emit(op.flip(turned, axis))
    return turned


def reverse_sequence(node: TfliteOperands) -> Any:
    """REVERSE_SEQUENCE of any type; each batch has its own number of first elements that are reversed."""
    options, shape = node.options("ReverseSequenceOptions"), node.shape(0)
    axis, batch = int(options.SeqDim()) % len(shape), int(options.BatchDim()) % len(shape)
    along = [size if dim == axis else 1 for dim, size in enumerate(shape)]
    positions = const(np.arange(shape[axis]).reshape(along), "int64")
    lengths = node.emit(op.astype(node.raw(1), "int64"))
    lengths = node.emit(op.reshape(lengths, [size if dim == batch else 1 for dim, size in enumerate(shape)]))
    turned = op.subtract(op.subtract(lengths, const(1, "int64")), positions)
    chosen = node.emit(op.where(node.emit(op.less(positions, lengths)), node.emit(turned), positions))
    indices = node.emit(op.broadcast_to(chosen, relax.ShapeExpr(shape)))
    return op.gather_elements(node.raw(0), indices, axis)


CONVERTERS: dict[str, Callable[[TfliteOperands], Any]] = {
    "REVERSE_SEQUENCE": reverse_sequence,
    "REVERSE_V2": reverse,
}
