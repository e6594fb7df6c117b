"""ConstantOfShape, Expand, Tile and Reshape to shapes that only the run knows.

Elements of a shape that are known before the model runs become sizes; the run counts the other sizes
(kiln.frontend.onnx.data_dependent_sizes).
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
from onnx import numpy_helper
from tvm import relax, tirx

from kiln.extents import Extent, is_one
from kiln.frontend.counted import movement
from kiln.frontend.counted.movement import element
from kiln.frontend.onnx.data_dependent_sizes import axis_size, extents_of, length_of
from kiln.frontend.onnx.known_parts import known_parts
from kiln.frontend.onnx.node import Node, shape_expr
from kiln.frontend.symbols import int64, int64_of

op = relax.op


def constant_of_shape(node: Node) -> Any:
    """ConstantOfShape with a shape that only the run knows."""
    attribute = node.attributes.get("value")
    value = np.zeros(1, np.float32) if attribute is None else numpy_helper.to_array(attribute)
    length_of(node, 0)
    sizes = [
        axis_size(node, axis, [node.tensor(0)], lambda run_shape, axis=axis: element(run_shape, axis))
        if size is None
        else size
        for axis, size in enumerate(known_parts(node, 0))
    ]
    dtype = str(value.dtype)
    return op.full(shape_expr(sizes), relax.const(value.reshape(()), dtype), dtype)


def expand(node: Node) -> Any:
    """Expand to a shape that only the run knows; it ends with KILN_TOO_MANY if a size does not broadcast."""
    data, shape, length = node.tensor(0), node.shape(0), length_of(node, 1)
    rank = max(len(shape), length)
    padded_shape: list[Extent] = [1] * (rank - len(shape)) + shape
    sizes: list[Extent] = []
    known_sizes = known_parts(node, 1)
    data_sizes = extents_of(node) if shape else relax.const(np.ones(1, "int64"), "int64")
    for axis, extent in enumerate(padded_shape):
        shape_axis, data_axis = axis - (rank - length), axis - (rank - len(shape))

        def broadcast_size(
            tensor: Any,
            extents: Any,
            shape_axis: int = shape_axis,
            extent: Extent = extent,
            data_axis: int = data_axis,
        ) -> Any:
            required = element(tensor, shape_axis)
            if is_one(extent):
                return required
            actual = element(extents, data_axis)
            return tirx.Select(tirx.any(required == actual, required == int64(1)), actual, int64(-1))

        most = None if is_one(extent) else extent
        required = 1 if shape_axis < 0 else known_sizes[shape_axis]
        if required is not None and (is_one(required) or node.symbols.equal(required, extent)):
            sizes.append(extent)
        elif required is not None and is_one(extent):
            sizes.append(required)
        else:
            sizes.append(axis_size(node, axis, [node.tensor(1), data_sizes], broadcast_size, most))

    def read(indices: Any, x: Any) -> Any:
        pairs = zip(indices[rank - len(shape) :], shape, strict=True)
        return x(*[int64(0) if is_one(extent) else index for index, extent in pairs])

    return movement.move(node.builder, sizes, [data], read, "expand")


def tile(node: Node) -> Any:
    """Tile by repeats that only the run knows."""
    data, shape = node.tensor(0), node.shape(0)
    data_sizes = extents_of(node)
    repeats = known_parts(node, 1)
    sizes = [
        node.symbols.product([repeats[axis], shape[axis]])
        if repeats[axis] is not None
        else axis_size(
            node, axis, [node.tensor(1), data_sizes],
            lambda counts, run_sizes, axis=axis: tirx.Select(
                element(counts, axis) < int64(0), int64(-1), element(counts, axis) * element(run_sizes, axis)
            ),
        )
        for axis in range(len(shape))
    ]  # fmt: skip

    def read(indices: Any, x: Any) -> Any:
        return x(*[tirx.floormod(index, int64_of(size)) for index, size in zip(indices, shape, strict=True)])

    return movement.move(node.builder, sizes, [data], read, "tile")


def reshape(node: Node) -> Any:
    """Reshape to a shape that only the run knows; it ends with KILN_TOO_MANY if the elements do not fit."""
    data, shape, length = node.tensor(0), node.shape(0), length_of(node, 1)
    elements, keeps = node.symbols.product(shape), not node.attributes.get("allowzero", 0)
    if not isinstance(elements, int):
        raise ValueError(
            f"its input '{node.inputs[1]}' is not known before the model runs, nor are sizes of its data: "
            "fix one of them"
        )

    def sizes_of(run_shape: Any) -> list[Any]:
        sizes = [element(run_shape, axis) for axis in range(length)]
        if keeps:
            sizes = [
                tirx.Select(size == int64(0), int64_of(shape[axis]) if axis < len(shape) else int64(-2), size)
                for axis, size in enumerate(sizes)
            ]
        product = reduce(
            lambda a, b: a * b, (tirx.Select(n == int64(-1), int64(1), n) for n in sizes), int64(1)
        )
        # 32-bit processors cannot divide longer integers.
        inferred = tirx.Cast(
            "int64",
            tirx.truncdiv(
                tirx.IntImm("int32", elements),
                tirx.Cast("int32", tirx.max(tirx.min(product, int64(elements + 1)), int64(1))),
            ),
        )
        resolved = [tirx.Select(size == int64(-1), inferred, size) for size in sizes]
        product = reduce(lambda a, b: a * b, resolved, int64(1))
        return [tirx.Select(product == int64(elements), size, int64(-1)) for size in resolved]

    def fixed_size(axis: int, size: Extent | None) -> Extent | None:
        """The size of an axis, if it is known before the run; at least one other is not, and is checked."""
        if isinstance(size, int) and size == 0 and keeps:
            return shape[axis] if axis < len(shape) else None
        return size if isinstance(size, int) and size > 0 else None

    known_sizes = [fixed_size(axis, size) for axis, size in enumerate(known_parts(node, 1))]
    sizes = [
        axis_size(node, axis, [node.tensor(1)], lambda run_shape, axis=axis: sizes_of(run_shape)[axis])
        if size is None
        else size
        for axis, size in enumerate(known_sizes)
    ]
    flat = node.builder.emit(op.reshape(data, shape_expr([elements])))
    return movement.in_shape(node.builder, flat, sizes, "reshape")
