"""ONNX operators whose sizes depend on data: limits of Slice, parts of Split, amounts of Pad, and others.

Each axis of the result has a counted size (kiln.frontend.counted): its greatest value follows from the graph,
as for Slice and Split, or is given in the YAML file, `bounds: {result: N}` for every axis, or
`bounds: {"result[1]": N}` for one. Converters have the interface of kiln.frontend.onnx.ops.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from tvm import relax, tirx

from kiln.extents import Extent
from kiln.frontend.counted import movement
from kiln.frontend.counted.movement import element
from kiln.frontend.onnx.node import Node, as_tensor
from kiln.frontend.onnx.value import from_items
from kiln.frontend.symbols import int64, int64_of

op = relax.op


def length_of(node: Node, index: int) -> int:
    """The number of elements of a vector. Raises ValueError where it is not known before the model runs."""
    shape = node.shape(index)
    if len(shape) > 1 or not all(isinstance(extent, int) for extent in shape):
        raise ValueError(
            f"its input '{node.inputs[index]}' has a length that is not known before the model runs"
        )
    return int(shape[0]) if shape else 1


def axis_size(
    node: Node, axis: int, values: Sequence[Any], compute: Any, most: Extent | None = None, out: int = 0
) -> Any:
    """The variable of the size of an axis of result `out`, computed from `values`."""
    count = movement.number(node.builder, values, compute, f"{node.op.lower()}_size")
    return movement.size(node.builder, node.symbols, node.outputs[out], axis, count, most)


def extents_of(node: Node) -> Any:
    """The shape of the node's data as an int64 vector, for kernels that do not read the data itself."""
    return node.builder.emit(as_tensor(from_items(node.shape(0))))


class _NumbersByAxis:
    """Numbers that a node gives for some axes of its data, where the run knows the numbers or the axes.

    axes: the axes that may have a number. count: how many axes the node names.
    """

    def __init__(self, node: Node, index: int, count: int) -> None:
        self.node, self.rank, self.count = node, len(node.shape(0)), count
        axes_known: Sequence[Any] | None = range(count)
        if node.has(index):
            axes_known = node.elements(index)
        self.axes = (
            list(range(self.rank)) if axes_known is None else sorted(int(n) % self.rank for n in axes_known)
        )
        named = None if axes_known is None else np.array([int(n) for n in axes_known], "int64")
        self._known = axes_known
        self._named = node.tensor(index) if named is None else relax.const(named, "int64")

    def known(self, numbers: Sequence[Extent] | None, axis: int) -> Extent | None:
        """The sum of the numbers for an axis, if they and the axes are known before the model runs."""
        if numbers is None or self._known is None:
            return None
        named = [
            position for position, named_axis in enumerate(self._known) if int(named_axis) % self.rank == axis
        ]
        return sum(
            numbers[position + offset] for position in named for offset in range(0, len(numbers), self.count)
        )

    def spread(self, numbers: Any, default: int, offset: int = 0) -> Any:
        """A vector with a number for each axis: numbers[offset + i] for the axis named i-th, or `default`."""

        def number_of_axis(indices: Any, values: Any, named: Any) -> Any:
            number: Any = int64(default)
            for position in range(self.count):
                axis = element(named, position)
                matches = tirx.any(axis == indices[0], axis + int64(self.rank) == indices[0])
                number = tirx.Select(matches, element(values, position + offset), number)
            return number

        return movement.move(
            self.node.builder, [self.rank], [numbers, self._named], number_of_axis, "axis_numbers"
        )


def slice_(node: Node) -> Any:
    """Slice between limits that only the run knows, along any axes; it needs no bound."""
    data, shape, length = node.tensor(0), node.shape(0), length_of(node, 1)
    chosen = _NumbersByAxis(node, 3, length)
    steps = node.tensor(4) if node.has(4) else relax.const(np.ones(length, "int64"), "int64")
    ends = [node.tensor(1), node.tensor(2), steps]
    limits = [
        chosen.spread(numbers, default) for numbers, default in zip(ends, (0, 2**31 - 1, 1), strict=True)
    ]
    sizes, extents = list(shape), extents_of(node)
    for axis in chosen.axes:

        def count(*inputs: Any, axis: int = axis) -> Any:
            return movement.slice_count(*[element(numbers, axis) for numbers in inputs])

        sizes[axis] = axis_size(node, axis, [*limits, extents], count, shape[axis])

    def start(indices: Any, begin: Any, step: Any, extent: Any) -> Any:
        return movement.slice_start(begin(indices[0]), step(indices[0]), extent(indices[0]))

    starts = movement.move(node.builder, [len(shape)], [limits[0], limits[2], extents], start, "slice_start")

    def read(indices: Any, x: Any, first: Any, step: Any) -> Any:
        source = list(indices)
        for axis in chosen.axes:
            source[axis] = element(first, axis) + source[axis] * element(step, axis)
        return x(*source)

    return movement.move(node.builder, sizes, [data, starts, limits[2]], read, "slice")


def split(node: Node) -> Any:
    """Split into parts whose sizes only the run knows; it ends with an error if they do not fill the axis."""
    data, shape, parts = node.tensor(0), node.shape(0), length_of(node, 1)
    axis = int(node.attributes.get("axis", 0)) % len(shape)
    extents, results = extents_of(node), []
    for number in range(parts):

        def count(lengths: Any, extents: Any, number: int = number) -> Any:
            numbers = [element(lengths, position) for position in range(parts)]
            total = reduce(lambda a, b: a + b, numbers)
            fits = tirx.all(total == element(extents, axis), *[n >= int64(0) for n in numbers])
            return tirx.Select(fits, numbers[number], int64(-1))

        def read(indices: Any, x: Any, lengths: Any, number: int = number) -> Any:
            source = list(indices)
            for earlier in range(number):
                source[axis] = source[axis] + element(lengths, earlier)
            return x(*source)

        sizes = list(shape)
        sizes[axis] = axis_size(node, axis, [node.tensor(1), extents], count, shape[axis], number)
        results.append(movement.move(node.builder, sizes, [data, node.tensor(1)], read, "split"))
    return relax.Tuple(results)


def pad(node: Node) -> Any:
    """Pad by amounts that only the run knows, in every mode.

    Negative amounts cut elements off first: modes that repeat elements repeat those that remain.
    """
    data, shape, rank = node.tensor(0), node.shape(0), len(node.shape(0))
    mode = node.attributes.get("mode", b"constant").decode()
    if mode not in ("constant", "edge", "reflect", "wrap"):
        raise ValueError(f"mode {mode}, known: constant, edge, reflect, wrap")
    amounts = length_of(node, 1)
    chosen = _NumbersByAxis(node, 3, amounts // 2)
    if amounts % 2 or (not node.has(3) and amounts != 2 * rank):
        raise ValueError(f"its input '{node.inputs[1]}' has {amounts} amounts, allowed: two for each axis")
    around = [chosen.spread(node.tensor(1), 0, offset) for offset in (0, chosen.count)]
    sizes, extents = list(shape), extents_of(node)
    for axis in chosen.axes:

        def count(*terms: Any, axis: int = axis) -> Any:
            return reduce(lambda a, b: a + b, (element(vector, axis) for vector in terms))

        added = chosen.known(node.elements(1), axis)
        if added is None:
            sizes[axis] = axis_size(node, axis, [*around, extents], count)
        else:
            sizes[axis] = node.symbols.simplify(shape[axis] + added)
    dtype = str(data.ty.dtype)
    fill = node.tensor(2) if node.has(2) else relax.const(np.zeros((), dtype), dtype)

    def read(indices: Any, x: Any, value: Any, *amounts: Any) -> Any:
        source, inside, zero = list(indices), [], int64(0)
        for axis in chosen.axes:
            (before, after), extent = (element(ends, axis) for ends in amounts), int64_of(shape[axis])
            inside += [indices[axis] >= before, indices[axis] - before < extent]
            cut_off = tirx.max(-before, zero)
            left = extent - cut_off - tirx.max(-after, zero)
            place = cut_off + movement.padded_place(indices[axis], tirx.max(before, zero), left, mode)
            source[axis] = tirx.max(tirx.min(place, extent - int64(1)), zero)
        value_there = x(*source)
        if mode != "constant":
            return value_there
        return tirx.if_then_else(
            tirx.all(*inside), value_there, value(int64(0)) if len(value.shape) else value()
        )

    return movement.move(node.builder, sizes, [data, fill, *around], read, "pad")


def center_crop_pad(node: Node) -> Any:
    """CenterCropPad to a shape of the run, or of int32: axes are cropped, or padded with 0, at both ends.

    ONNX's body, which computes the other nodes, takes a shape of int64 only.
    """
    data, shape, length = node.tensor(0), node.shape(0), length_of(node, 1)
    known = node.elements(1)
    if known is not None and str(node.tensor(1).ty.dtype) == "int64":
        return None
    rank = len(shape)
    axes = [int(axis) % rank for axis in node.attributes.get("axes") or range(rank)]
    if len(axes) != length:
        raise ValueError(f"its shape has {length} sizes, allowed: {len(axes)}, one for each of its axes")
    sizes = list(shape)
    for position, axis in enumerate(axes):

        def count(run_shape: Any, position: int = position) -> Any:
            return element(run_shape, position)

        sizes[axis] = axis_size(node, axis, [node.tensor(1)], count) if known is None else known[position]

    def read(indices: Any, x: Any) -> Any:
        source, inside = list(indices), []
        for axis in axes:
            old, new = int64_of(shape[axis]), int64_of(sizes[axis])
            cropped, added = (old - new) >> int64(1), (new - old) >> int64(1)
            position = indices[axis] + tirx.Select(old >= new, cropped, -added)
            inside += [position >= int64(0), position < old]
            source[axis] = tirx.max(tirx.min(position, old - int64(1)), int64(0))
        zero = tirx.const(0, str(data.ty.dtype))
        # Not a selection: TVM drops the clamps where the condition implies them, and then both are read.
        return tirx.if_then_else(tirx.all(*inside), x(*source), zero)

    return movement.move(node.builder, sizes, [data], read, "center_crop_pad")


def one_hot(node: Node) -> Any:
    """OneHot with a depth or values that only the run knows."""
    indices, shape = node.tensor(0), node.shape(0)
    rank = len(shape) + 1
    axis = int(node.attributes.get("axis", -1)) % rank
    depth_known, constant = node.elements(1), node.constant(1)
    depth: Extent
    if constant is not None:
        depth = int(constant.reshape(-1)[0])
    elif depth_known is not None:
        depth = depth_known[0]
    else:
        depth = axis_size(node, axis, [node.tensor(1)], lambda values: element(values, 0))

    def read(position_in_result: Any, indices: Any, values: Any) -> Any:
        hot = tirx.Cast("int64", indices(*position_in_result[:axis], *position_in_result[axis + 1 :]))
        hot = tirx.Select(hot < int64(0), hot + int64_of(depth), hot)
        return tirx.Select(hot == position_in_result[axis], values(int64(1)), values(int64(0)))

    shape_of_result = [*shape[:axis], depth, *shape[axis:]]
    return movement.move(node.builder, shape_of_result, [indices, node.tensor(2)], read, "one_hot")
