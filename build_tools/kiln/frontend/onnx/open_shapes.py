"""ConstantOfShape, Expand, Tile and Reshape to shapes that only the run knows.

Elements of a shape that are known before the model runs are sizes as they are; the others are counted
(kiln.frontend.onnx.open_sizes).
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
from onnx import numpy_helper
from tvm import relax, tirx

from kiln.frontend.counted import movement
from kiln.frontend.counted.movement import element
from kiln.frontend.onnx.broadcast import is_one
from kiln.frontend.onnx.known_parts import known_parts
from kiln.frontend.onnx.node import Node, shape_expr
from kiln.frontend.onnx.open_sizes import axis_size, extents_of, length_of
from kiln.frontend.symbols import Extent, int64, int64_of

op = relax.op


def constant_of_shape(node: Node) -> Any:
    """ConstantOfShape with a shape of the run."""
    given = node.attributes.get("value")
    value = np.zeros(1, np.float32) if given is None else numpy_helper.to_array(given)
    length_of(node, 0)
    sizes = [
        axis_size(node, axis, [node.tensor(0)], lambda wanted, axis=axis: element(wanted, axis))
        if known is None
        else known
        for axis, known in enumerate(known_parts(node, 0))
    ]
    dtype = str(value.dtype)
    return op.full(shape_expr(sizes), relax.const(value.reshape(()), dtype), dtype)


def expand(node: Node) -> Any:
    """Expand to a shape of the run; a size that does not broadcast ends the run with KILN_TOO_MANY."""
    data, shape, length = node.tensor(0), node.shape(0), length_of(node, 1)
    rank = max(len(shape), length)
    ours: list[Extent] = [1] * (rank - len(shape)) + shape
    sizes: list[Extent] = []
    parts = known_parts(node, 1)
    own_sizes = extents_of(node) if shape else relax.const(np.ones(1, "int64"), "int64")
    for axis, extent in enumerate(ours):
        place, inner = axis - (rank - length), axis - (rank - len(shape))

        def wanted(
            tensor: Any, extents: Any, place: int = place, extent: Extent = extent, at: int = inner
        ) -> Any:
            given = element(tensor, place)
            if is_one(extent):
                return given
            own = element(extents, at)
            return tirx.Select(tirx.any(given == own, given == int64(1)), own, int64(-1))

        most = None if is_one(extent) else extent
        known = 1 if place < 0 else parts[place]
        if known is not None and (is_one(known) or node.symbols.equal(known, extent)):
            sizes.append(extent)
        elif known is not None and is_one(extent):
            sizes.append(known)
        else:
            sizes.append(axis_size(node, axis, [node.tensor(1), own_sizes], wanted, most))

    def read(at: Any, x: Any) -> Any:
        inner = at[rank - len(shape) :]
        return x(*[int64(0) if is_one(extent) else one for one, extent in zip(inner, shape, strict=True)])

    return movement.move(node.builder, sizes, [data], read, "expand")


def tile(node: Node) -> Any:
    """Tile by repeats of the run."""
    data, shape = node.tensor(0), node.shape(0)
    own_sizes = extents_of(node)
    repeats = known_parts(node, 1)
    sizes = [
        node.symbols.product([repeats[axis], shape[axis]])
        if repeats[axis] is not None
        else axis_size(
            node, axis, [node.tensor(1), own_sizes],
            lambda n, own, axis=axis: tirx.Select(
                element(n, axis) < int64(0), int64(-1), element(n, axis) * element(own, axis)
            ),
        )
        for axis in range(len(shape))
    ]  # fmt: skip

    def read(at: Any, x: Any) -> Any:
        return x(*[tirx.floormod(one, int64_of(own)) for one, own in zip(at, shape, strict=True)])

    return movement.move(node.builder, sizes, [data], read, "tile")


def reshape(node: Node) -> Any:
    """Reshape to a shape of the run; one of another number of elements ends the run with KILN_TOO_MANY."""
    data, shape, length = node.tensor(0), node.shape(0), length_of(node, 1)
    whole, keeps = node.symbols.product(shape), not node.attributes.get("allowzero", 0)
    if not isinstance(whole, int):
        raise ValueError(
            f"its input '{node.inputs[1]}' is not known before the model runs, nor are sizes of its data: "
            "fix one of them"
        )

    def sizes_of(wanted: Any) -> list[Any]:
        given = [element(wanted, axis) for axis in range(length)]
        if keeps:
            given = [
                tirx.Select(one == int64(0), int64_of(shape[axis]) if axis < len(shape) else int64(-2), one)
                for axis, one in enumerate(given)
            ]
        others = reduce(
            lambda a, b: a * b, (tirx.Select(n == int64(-1), int64(1), n) for n in given), int64(1)
        )
        # 32-bit processors divide no longer integers.
        left = tirx.Cast(
            "int64",
            tirx.truncdiv(
                tirx.IntImm("int32", whole),
                tirx.Cast("int32", tirx.max(tirx.min(others, int64(whole + 1)), int64(1))),
            ),
        )
        found = [tirx.Select(one == int64(-1), left, one) for one in given]
        total = reduce(lambda a, b: a * b, found, int64(1))
        return [tirx.Select(total == int64(whole), one, int64(-1)) for one in found]

    def known(axis: int, size: Extent | None) -> Extent | None:
        """The size of an axis, if it is known: the others, of which there is one, are checked with it."""
        if isinstance(size, int) and size == 0 and keeps:
            return shape[axis] if axis < len(shape) else None
        return size if isinstance(size, int) and size > 0 else None

    given = [known(axis, size) for axis, size in enumerate(known_parts(node, 1))]
    sizes = [
        axis_size(node, axis, [node.tensor(1)], lambda wanted, axis=axis: sizes_of(wanted)[axis])
        if size is None
        else size
        for axis, size in enumerate(given)
    ]
    flat = node.builder.emit(op.reshape(data, shape_expr([whole])))

    def read(at: Any, x: Any) -> Any:
        place: Any = int64(0)
        for one, extent in zip(at, sizes, strict=True):
            place = place * extent + one
        return x(place)

    return movement.move(node.builder, sizes, [flat], read, "reshape")
