"""Converter of ONNX's AffineGrid, whose sizes may be dynamic, or known only when the model runs.

The converter has the interface of kiln.frontend.onnx.ops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from kiln.extents import Extent
from kiln.frontend.counted import movement
from kiln.frontend.counted.movement import element
from kiln.frontend.onnx.node import Node
from kiln.frontend.symbols import int64, int64_of


def affine_grid(node: Node) -> Any:
    """AffineGrid: coordinates [N, *spatial, axes] of the centres, or corners, of elements, times matrices.

    The coordinate along the last axis comes first. TVM refuses corners of an axis of one element.
    """
    theta, (batch, rank, columns) = node.tensor(0), node.shape(0)
    if rank not in (2, 3) or columns != rank + 1:
        raise ValueError(f"matrices of {rank} x {columns}, allowed: 2 x 3 and 3 x 4")
    sizes, dtype = _sizes(node, rank), str(theta.ty.dtype)
    corners = bool(node.attributes.get("align_corners", 0))

    def number(value: Any) -> Any:  # 32-bit processors do not convert int64
        return tirx.Cast(dtype, tirx.Cast("int32", value))

    def coordinate(index: Any, size: Extent) -> Any:
        """The coordinate of an element of an axis, from -1 to 1."""
        unit, length = tirx.const(1, dtype), int64_of(size)
        if not corners:
            return number(index + index + int64(1)) / number(length) - unit
        return number(index + index) / number(tirx.max(length - int64(1), int64(1))) - unit

    def read(indices: Sequence[Any], matrices: Any) -> Any:
        image, *spatial, row = indices
        total = matrices(image, row, int64(rank))
        for column, axis in enumerate(reversed(range(rank))):
            total = total + matrices(image, row, int64(column)) * coordinate(spatial[axis], sizes[axis])
        return total

    return movement.move(node.builder, [batch, *sizes, rank], [theta], read, "affine_grid")


def _sizes(node: Node, rank: int) -> list[Extent]:
    """The sizes of the spatial axes. The run counts sizes that are data, and checks the number of images."""
    if node.shape(1) != [rank + 2]:
        raise ValueError(f"its size has the shape {node.shape(1)}, allowed for its matrices: [{rank + 2}]")
    numbers_known = node.elements(1)
    if numbers_known is not None:
        return numbers_known[2:]

    def size(axis: int) -> Any:
        def compute(numbers: Any, matrices: Any) -> Any:
            equal_batches = element(numbers, 0) == tirx.Cast("int64", matrices.shape[0])
            return tirx.Select(equal_batches, element(numbers, axis), int64(-1))

        operands = [node.tensor(1), node.tensor(0)]
        count = movement.number(node.builder, operands, compute, "affine_grid_size")
        return movement.size(node.builder, node.symbols, node.outputs[0], axis - 1, count, None)

    return [size(axis + 2) for axis in range(rank)]


CONVERTERS: dict[str, Callable[[Node], Any]] = {"AffineGrid": affine_grid}
