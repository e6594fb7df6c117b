"""Non-maximum suppression as ONNX defines it: the indices of the boxes that are kept, and how many.

For each image and class, the boxes whose score is above the threshold are sorted; of equal scores the first
box comes first. From the best on, a box is kept unless its intersection over union with a kept box exceeds
the limit, until the greatest number of boxes is kept. For n boxes above the threshold of which k are kept,
that takes n log n steps for the sort and at most n k comparisons, and memory for 3 n indices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as script

from kiln.extents import Extent, extent
from kiln.frontend.counted.memory import SORT_SLOTS, IndexRow, Slots, merge_sort, serial
from kiln.frontend.counted.sizes import counted
from kiln.frontend.symbols import Symbols, int64, int64_of

_FOUND, _KEPT, _SUPPRESSED, _SORT = 0, 1, 2, 3  # slots


@dataclass(frozen=True)
class Suppression:
    """Operands and attributes of a NonMaxSuppression.

    boxes: (images, boxes, 4). scores: (images, classes, boxes). most: int64, the greatest number of boxes
    kept of a class; overlap, threshold: float32, limits of the intersection over union and of the score, all
    of one element; threshold None: every score counts. centred: a box is (x, y, width, height), else two
    corners. inclusive: a box is suppressed from the limit on, not above it.
    """

    boxes: Any
    scores: Any
    most: Any
    overlap: Any
    threshold: Any = None
    centred: bool = False
    inclusive: bool = False


def suppress(builder: Any, symbols: Symbols, tensor: str, suppression: Suppression, most: Extent) -> Any:
    """The kept boxes: rows (image, class, box) of int64, by image, by class, and from the best on.

    `tensor`: the tensor of the file that is counted. `most`: the greatest number of rows.
    """
    most = symbols.most_counted(tensor, most)
    rows, count = rows_and_count(builder, symbols, suppression, most)
    return counted(builder, symbols, tensor, count, [rows], most)[0]


def rows_and_count(
    builder: relax.BlockBuilder, symbols: Symbols, suppression: Suppression, most: Extent
) -> tuple[Any, Any]:
    """The kept boxes as the first of `most` rows, whose others are not specified, and how many they are."""
    greatest = symbols.greatest([extent(suppression.scores.ty.shape[2])])
    if greatest is None:
        raise ValueError("its number of boxes has no greatest value")
    operands = [suppression.boxes, suppression.scores, suppression.most, suppression.overlap]
    operands += [] if suppression.threshold is None else [suppression.threshold]

    def compute(*tensors: Any) -> Any:
        boxes = tensors[1].shape[2]
        shapes = [[int64_of(most), int64(3)], [int64(1)], [int64(3), boxes], [int64(_SORT + SORT_SLOTS)]]
        return te.extern(
            shapes, list(tensors), lambda i, o: _Suppressor(i, o, suppression, greatest).statement(),
            dtype=["int64", "int64", "int32", "int64"], name="non_max_suppression",
        )  # fmt: skip

    suppressed = builder.emit_te(compute, *operands, primfunc_name_hint="non_max_suppression")
    rows, count = (builder.emit(relax.TupleGetItem(suppressed, index)) for index in (0, 1))
    return rows, count


class _Suppressor:
    """Writes the statement over the buffers of `suppress`."""

    def __init__(self, inputs: Any, outputs: Any, suppression: Suppression, greatest: int) -> None:
        self.boxes, self.scores, self.most, self.overlap = inputs[:4]
        self.threshold = inputs[4] if len(inputs) > 4 else None
        self.rows, self.count = outputs[0], Slots(outputs[1])
        self.order, self.spare, self.kept = (IndexRow(outputs[2], number) for number in range(3))
        self.slots = Slots(outputs[3])
        self.centred, self.inclusive, self.greatest = suppression.centred, suppression.inclusive, greatest

    def statement(self) -> Any:
        """The loops over images and classes."""
        images, classes, boxes = self.scores.shape
        with IRBuilder() as ir, script.seq_scope():
            self.count[0] = int64(0)
            with serial(images) as image, serial(classes) as kind:
                self._candidates(image, kind, boxes)
                merge_sort(
                    self.order, self.spare, self.slots[_FOUND], self.greatest,
                    lambda a, b: self._score(image, kind, a) < self._score(image, kind, b), self.slots, _SORT,
                )  # fmt: skip
                self.slots[_KEPT] = int64(0)
                limit = tirx.Cast("int64", _only(self.most))
                left = self.slots[_KEPT] < limit
                with serial(self.slots[_FOUND]) as position, script.If(left), script.Then():
                    self._keep(image, kind, self.order[position])
        return ir.get()

    def _score(self, image: Any, kind: Any, box: Any) -> Any:
        return tirx.BufferLoad(self.scores, [image, kind, box])

    def _candidates(self, image: Any, kind: Any, boxes: Any) -> None:
        """Write the boxes above the threshold into `order`."""
        self.slots[_FOUND] = int64(0)
        with serial(boxes) as box:
            above: Any = tirx.const(True, "bool")
            if self.threshold is not None:
                above = self._score(image, kind, box) > _only(self.threshold)
            with script.If(above), script.Then():
                self.order[self.slots[_FOUND]] = box
                self.slots[_FOUND] = self.slots[_FOUND] + int64(1)

    def _keep(self, image: Any, kind: Any, box: Any) -> None:
        """Add a row for `box` unless it overlaps a kept box of its class."""
        slots, count = self.slots, self.count
        slots[_SUPPRESSED] = int64(0)
        with serial(slots[_KEPT]) as number, script.If(slots[_SUPPRESSED] == 0), script.Then():
            slots[_SUPPRESSED] = self._overlap(image, self.kept[number], box)
        with script.If(slots[_SUPPRESSED] == 0), script.Then():
            self.kept[slots[_KEPT]] = box
            slots[_KEPT] = slots[_KEPT] + int64(1)
            with script.If(count[0] < self.rows.shape[0]), script.Then():
                for column, value in enumerate((image, kind, box)):
                    script.buffer_store(self.rows, tirx.Cast("int64", value), [count[0], int64(column)])
            count[0] = count[0] + int64(1)

    def _overlap(self, image: Any, kept: Any, box: Any) -> Any:
        """Whether the intersection over union of two boxes exceeds the limit; a box may have no area."""
        sides, areas = [], []
        zero = tirx.const(0, self.boxes.dtype)
        ends = [[self._ends(image, which, axis) for axis in (0, 1)] for which in (kept, box)]
        for axis in (0, 1):
            (low_a, high_a), (low_b, high_b) = ends[0][axis], ends[1][axis]
            sides.append(tirx.min(high_a, high_b) - tirx.max(low_a, low_b))
        for one in ends:
            areas.append((one[0][1] - one[0][0]) * (one[1][1] - one[1][0]))
        shared = sides[0] * sides[1]
        union = areas[0] + areas[1] - shared
        some = tirx.all(
            sides[0] > zero, sides[1] > zero, shared > zero, areas[0] > zero, areas[1] > zero, union > zero
        )
        divisor = tirx.Select(union > zero, union, tirx.const(1, self.boxes.dtype))
        if self.inclusive:
            return tirx.Select(some, shared / divisor, zero) >= _only(self.overlap)
        return tirx.all(some, shared / divisor > _only(self.overlap))

    def _ends(self, image: Any, box: Any, axis: int) -> tuple[Any, Any]:
        """The least and greatest coordinate of a box along an axis."""
        a, b = (tirx.BufferLoad(self.boxes, [image, box, int64(at)]) for at in (axis, axis + 2))
        if self.centred:
            half = b / tirx.const(2, self.boxes.dtype)
            return a - half, a + half
        return tirx.min(a, b), tirx.max(a, b)


def _only(buffer: Any) -> Any:
    """The element of a buffer of one axis and one element."""
    return tirx.BufferLoad(buffer, [int64(0)])
