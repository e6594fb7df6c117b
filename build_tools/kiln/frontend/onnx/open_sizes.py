"""ONNX operators whose sizes are values that only the run knows: limits, parts, amounts, depths.

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

from kiln.frontend.counted import movement
from kiln.frontend.counted.movement import element
from kiln.frontend.onnx.node import Node, as_tensor
from kiln.frontend.onnx.value import from_items
from kiln.frontend.symbols import Extent, int64, int64_of

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


class _Chosen:
    """Numbers for each axis of a node's data, given for axes that are known, or an input of the run.

    axes: the axes that may be named. count: how many the node names.
    """

    def __init__(self, node: Node, index: int, count: int) -> None:
        self.node, self.rank, self.count = node, len(node.shape(0)), count
        known: Sequence[Any] | None = range(count)
        if node.has(index):
            known = node.elements(index)
        self.axes = list(range(self.rank)) if known is None else sorted(int(n) % self.rank for n in known)
        named = None if known is None else np.array([int(n) for n in known], "int64")
        self._known = known
        self._named = node.tensor(index) if named is None else relax.const(named, "int64")

    def known(self, numbers: Sequence[Extent] | None, axis: int) -> Extent | None:
        """The sum of the numbers for an axis, if they and the axes are known before the model runs."""
        if numbers is None or self._known is None:
            return None
        named = [place for place, one in enumerate(self._known) if int(one) % self.rank == axis]
        return sum(
            numbers[place + offset] for place in named for offset in range(0, len(numbers), self.count)
        )

    def spread(self, numbers: Any, default: int, offset: int = 0) -> Any:
        """A vector of a number per axis: of `numbers`, from position `offset` on, or the default."""

        def one(at: Any, given: Any, named: Any) -> Any:
            found: Any = int64(default)
            for place in range(self.count):
                axis = element(named, place)
                matches = tirx.any(axis == at[0], axis + int64(self.rank) == at[0])
                found = tirx.Select(matches, element(given, place + offset), found)
            return found

        return movement.move(self.node.builder, [self.rank], [numbers, self._named], one, "axis_numbers")


def slice_(node: Node) -> Any:
    """Slice between limits of the run, along axes that are known or of the run; no bound is needed."""
    data, shape, length = node.tensor(0), node.shape(0), length_of(node, 1)
    chosen = _Chosen(node, 3, length)
    steps = node.tensor(4) if node.has(4) else relax.const(np.ones(length, "int64"), "int64")
    given = [node.tensor(1), node.tensor(2), steps]
    limits = [chosen.spread(one, default) for one, default in zip(given, (0, 2**31 - 1, 1), strict=True)]
    sizes, extents = list(shape), extents_of(node)
    for axis in chosen.axes:

        def count(*ends: Any, axis: int = axis) -> Any:
            return movement.slice_count(*[element(one, axis) for one in ends])

        sizes[axis] = axis_size(node, axis, [*limits, extents], count, shape[axis])

    def start(at: Any, begin: Any, step: Any, extent: Any) -> Any:
        return movement.slice_start(begin(at[0]), step(at[0]), extent(at[0]))

    starts = movement.move(node.builder, [len(shape)], [limits[0], limits[2], extents], start, "slice_start")

    def read(at: Any, x: Any, first: Any, step: Any) -> Any:
        places = list(at)
        for axis in chosen.axes:
            places[axis] = element(first, axis) + places[axis] * element(step, axis)
        return x(*places)

    return movement.move(node.builder, sizes, [data, starts, limits[2]], read, "slice")


def split(node: Node) -> Any:
    """Split into parts whose sizes the run gives; parts that are not the whole axis end the run."""
    data, shape, parts = node.tensor(0), node.shape(0), length_of(node, 1)
    axis = int(node.attributes.get("axis", 0)) % len(shape)
    extents, results = extents_of(node), []
    for part in range(parts):

        def count(given: Any, extents: Any, part: int = part) -> Any:
            numbers = [element(given, place) for place in range(parts)]
            total = reduce(lambda a, b: a + b, numbers)
            fits = tirx.all(total == element(extents, axis), *[n >= int64(0) for n in numbers])
            return tirx.Select(fits, numbers[part], int64(-1))

        def read(at: Any, x: Any, given: Any, part: int = part) -> Any:
            places = list(at)
            for earlier in range(part):
                places[axis] = places[axis] + element(given, earlier)
            return x(*places)

        sizes = list(shape)
        sizes[axis] = axis_size(node, axis, [node.tensor(1), extents], count, shape[axis], part)
        results.append(movement.move(node.builder, sizes, [data, node.tensor(1)], read, "split"))
    return relax.Tuple(results)


def pad(node: Node) -> Any:
    """Pad by amounts of the run, negative ones too, in every mode."""
    data, shape, rank = node.tensor(0), node.shape(0), len(node.shape(0))
    mode = node.attributes.get("mode", b"constant").decode()
    if mode not in ("constant", "edge", "reflect", "wrap"):
        raise ValueError(f"mode {mode}, known: constant, edge, reflect, wrap")
    amounts = length_of(node, 1)
    chosen = _Chosen(node, 3, amounts // 2)
    if amounts % 2 or (not node.has(3) and amounts != 2 * rank):
        raise ValueError(f"its input '{node.inputs[1]}' has {amounts} amounts, allowed: two for each axis")
    around = [chosen.spread(node.tensor(1), 0, offset) for offset in (0, chosen.count)]
    sizes, extents = list(shape), extents_of(node)
    for axis in chosen.axes:

        def count(*given: Any, axis: int = axis) -> Any:
            return reduce(lambda a, b: a + b, (element(one, axis) for one in given))

        added = chosen.known(node.elements(1), axis)
        if added is None:
            sizes[axis] = axis_size(node, axis, [*around, extents], count)
        else:
            sizes[axis] = node.symbols.simplify(shape[axis] + added)
    dtype = str(data.ty.dtype)
    fill = node.tensor(2) if node.has(2) else relax.const(np.zeros((), dtype), dtype)

    def read(at: Any, x: Any, value: Any, amounts: Any) -> Any:
        places, inside = list(at), []
        for axis in chosen.axes:
            before, extent = element(amounts, axis), int64_of(shape[axis])
            inside += [at[axis] >= before, at[axis] - before < extent]
            places[axis] = movement.padded_place(at[axis], before, extent, mode)
        found = x(*places)
        if mode != "constant":
            return found
        return tirx.if_then_else(tirx.all(*inside), found, value(int64(0)) if len(value.shape) else value())

    return movement.move(node.builder, sizes, [data, fill, around[0]], read, "pad")


def center_crop_pad(node: Node) -> Any:
    """CenterCropPad to a shape of the run: each axis is cropped, or padded with zeros, around its middle."""
    data, shape, length = node.tensor(0), node.shape(0), length_of(node, 1)
    if node.elements(1) is not None:
        return None
    rank = len(shape)
    axes = [int(axis) % rank for axis in node.attributes.get("axes") or range(rank)]
    if len(axes) != length:
        raise ValueError(f"its shape has {length} sizes, allowed: {len(axes)}, one for each of its axes")
    sizes = list(shape)
    for place, axis in enumerate(axes):

        def count(given: Any, place: int = place) -> Any:
            return element(given, place)

        sizes[axis] = axis_size(node, axis, [node.tensor(1)], count)

    def read(at: Any, x: Any) -> Any:
        places, inside = list(at), []
        for axis in axes:
            own, made = int64_of(shape[axis]), int64_of(sizes[axis])
            cropped, added = (own - made) >> int64(1), (made - own) >> int64(1)
            place = at[axis] + tirx.Select(own >= made, cropped, -added)
            inside += [place >= int64(0), place < own]
            places[axis] = tirx.max(tirx.min(place, own - int64(1)), int64(0))
        zero = tirx.const(0, str(data.ty.dtype))
        # Not a selection: TVM drops the clamps where the condition implies them, and then both are read.
        return tirx.if_then_else(tirx.all(*inside), x(*places), zero)

    return movement.move(node.builder, sizes, [data], read, "center_crop_pad")


def one_hot(node: Node) -> Any:
    """OneHot with a depth or values of the run."""
    places, shape = node.tensor(0), node.shape(0)
    rank = len(shape) + 1
    axis = int(node.attributes.get("axis", -1)) % rank
    found, constant = node.elements(1), node.constant(1)
    depth: Extent
    if constant is not None:
        depth = int(constant.reshape(-1)[0])
    elif found is not None:
        depth = found[0]
    else:
        depth = axis_size(node, axis, [node.tensor(1)], lambda given: element(given, 0))

    def read(at: Any, indices: Any, values: Any) -> Any:
        place = tirx.Cast("int64", indices(*at[:axis], *at[axis + 1 :]))
        place = tirx.Select(place < int64(0), place + int64_of(depth), place)
        return tirx.Select(place == at[axis], values(int64(1)), values(int64(0)))

    whole = [*shape[:axis], depth, *shape[axis:]]
    return movement.move(node.builder, whole, [places, node.tensor(2)], read, "one_hot")
