"""Converter of ONNX's Col2Im, whose images may have dynamic sizes, or sizes that only the run knows.

The converter has the interface of kiln.frontend.onnx.ops. Sizes are ints or TIR expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from kiln.extents import Extent
from kiln.frontend.counted import movement
from kiln.frontend.counted.movement import element
from kiln.frontend.onnx.known_parts import known_parts
from kiln.frontend.onnx.node import Node
from kiln.frontend.symbols import int64, int64_of

op = relax.op


def col2im(node: Node) -> Any:
    """Col2Im: sums overlapping blocks (N, C * block, windows) into images of any number of axes.

    Raises ValueError for another number of windows than the images have, and for channels that are no
    multiple of a block.
    """
    windows = _Windows(node)
    image = windows.image()
    batch, depth, _ = node.shape(0)
    counts = [windows.count(axis, size) for axis, size in enumerate(image)]
    channels = windows.channels(depth)
    columns, dtype = node.tensor(0), str(node.tensor(0).ty.dtype)
    if dtype == "bool":  # counted: an element is true if one of its blocks is
        columns, dtype = node.builder.emit(op.astype(columns, "int32")), "int32"

    def compute(x: Any) -> Any:
        taps = [te.reduce_axis((int64(0), int64(size)), f"k{i}") for i, size in enumerate(windows.block)]

        def place(n: Any, c: Any, *indices: Any) -> Any:
            inside, where = [], []
            for i, index in enumerate(indices):
                offset = index + windows.pads[i] - taps[i].var * windows.dilations[i]
                window = tirx.floordiv(offset, windows.strides[i])
                inside += [
                    tirx.EQ(tirx.floormod(offset, int64(windows.strides[i])), int64(0)),
                    window >= 0,
                    window < int64_of(counts[i]),
                ]
                where.append(tirx.max(tirx.min(window, int64_of(counts[i]) - 1), 0))
            row = _flat([c, *(tap.var for tap in taps)], [channels, *windows.block])
            value = x(n, row, _flat(where, counts))
            # Not a selection: TVM drops the clamps where the condition implies them, and then all are read.
            return te.sum(tirx.if_then_else(tirx.all(*inside), value, tirx.const(0, dtype)), axis=taps)

        return te.compute([int64_of(size) for size in (batch, channels, *image)], place, name="col2im")

    sums = node.builder.emit_te(compute, columns, primfunc_name_hint="col2im")
    return op.astype(sums, "bool") if str(node.tensor(0).ty.dtype) == "bool" else sums


def _flat(indices: Sequence[Any], sizes: Sequence[Extent]) -> Any:
    """The position of an element in row-major order of axes of `sizes`."""
    position = indices[0]
    for index, size in zip(indices[1:], sizes[1:], strict=True):
        position = position * size + index
    return position


class _Windows:
    """The attributes of a Col2Im and the block that a window is."""

    def __init__(self, node: Node) -> None:
        self._node = node
        block = node.known_elements(2)
        if not all(isinstance(size, int) for size in block):
            raise ValueError(f"its input '{node.inputs[2]}' must not depend on dynamic sizes")
        self.block, rank, attributes = [int(size) for size in block], len(block), node.attributes
        self.dilations = [int(v) for v in attributes.get("dilations") or [1] * rank]
        self.strides = [int(v) for v in attributes.get("strides") or [1] * rank]
        self.pads = [int(v) for v in attributes.get("pads") or [0] * 2 * rank]

    def count(self, axis: int, size: Any) -> Any:
        """The number of windows along an axis of `size` elements."""
        around = self.pads[axis] + self.pads[len(self.block) + axis]
        beyond = around - self.dilations[axis] * (self.block[axis] - 1) - 1
        return self._node.symbols.simplify((size + beyond) // self.strides[axis] + 1)

    def channels(self, depth: Extent) -> Extent:
        """The channels of the images."""
        block, symbols = int(np.prod(self.block)), self._node.symbols
        remainder = symbols.simplify(depth % block)
        if not isinstance(remainder, int) or remainder:
            raise ValueError(f"its blocks of {block} elements do not divide its channels of size {depth}")
        return symbols.simplify(depth // block)

    def image(self) -> list[Extent]:
        """The sizes of the images; the run counts those that are data, and checks the number of windows."""
        node, windows, symbols = self._node, self._node.shape(0)[2], self._node.symbols
        if node.shape(1) != [len(self.block)]:
            raise ValueError(f"its image_shape has the shape {node.shape(1)}, allowed: [{len(self.block)}]")
        known = known_parts(node, 1)
        if None in known:
            return [size if size is not None else self._counted(axis) for axis, size in enumerate(known)]
        image = [size for size in known if size is not None]
        counts = symbols.product([self.count(axis, size) for axis, size in enumerate(image)])
        if not symbols.equal(counts, windows):
            raise ValueError(
                f"its input '{node.inputs[0]}' has {windows} windows, allowed for images of {image}: {counts}"
            )
        return image

    def _counted(self, axis: int) -> Extent:
        """The size of an axis that the run reads; -1, which ends the run, for another number of windows."""
        node = self._node

        def compute(numbers: Any, columns: Any) -> Any:
            sizes = [element(numbers, number) for number in range(len(self.block))]
            counts = [self._count_of_run(number, size) for number, size in enumerate(sizes)]
            fits = reduce(lambda a, b: a * b, counts) == tirx.Cast("int64", columns.shape[2])
            return tirx.Select(
                tirx.all(fits, *(count > int64(0) for count in counts)), sizes[axis], int64(-1)
            )

        count = movement.number(node.builder, [node.tensor(1), node.tensor(0)], compute, "col2im_size")
        return movement.size(node.builder, node.symbols, node.outputs[0], axis + 2, count, None)

    def _count_of_run(self, axis: int, size: Any) -> Any:
        """`count` of a size that a kernel computes; 32-bit processors divide no longer integers."""
        around = self.pads[axis] + self.pads[len(self.block) + axis]
        beyond = around - self.dilations[axis] * (self.block[axis] - 1) - 1
        room = tirx.Cast("int32", size + int64(beyond))
        return tirx.Cast("int64", tirx.floordiv(room, tirx.IntImm("int32", self.strides[axis]))) + int64(1)


CONVERTERS: dict[str, Callable[[Node], Any]] = {"Col2Im": col2im}
