"""Non-maximum suppression: of boxes that overlap, keeps the one with the best score, for each class.

TVM's own rule sorts with a function of TVM's runtime. The code of this module searches for the best remaining
box repeatedly, in plain loops over one image; on a GPU each image is computed by one thread. Source:
TensorFlow Lite's DetectionPostProcess (`detection_postprocess.cc`): scores from the score threshold on count,
of equal scores the first, and a box is suppressed if its intersection over union with a better box is above
the overlap threshold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx
from tvm.ir import GenericConst
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as script

from kiln.tir.symbols import int64


def all_class_non_max_suppression(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Legalisation rule for relax.vision.all_class_non_max_suppression with TensorFlow's output format.

    The results are indices of class and box, shape (batch, class * box, 2), ordered by class and then from
    the best box to the worst; scores, shape (batch, class * box); and the number of boxes kept, shape
    (batch,). Elements after that number are 0. Raises ValueError if limits are not constants, and for ONNX's
    output format, whose number of rows depends on the data.
    """
    boxes, scores, *limits = call.args
    if str(call.attrs.output_format) != "tensorflow":
        raise ValueError("how many boxes it keeps depends on the data, and sizes must be known at build time")
    if not all(isinstance(limit, GenericConst) for limit in limits):
        raise ValueError("its limits are not known at build time")
    most, overlap, least = (limit.value.numpy().item() for limit in limits)
    batch, classes, count = scores.ty.shape
    slots_kept = builder.emit(
        builder.call_te(
            lambda x, s: kept(x, s, int(most), float(overlap), float(least)), boxes, scores,
            primfunc_name_hint="non_max_suppression",
        )
    )  # fmt: skip
    op, emit, slots = relax.op, builder.emit, classes * count
    slots_kept = emit(op.strided_slice(slots_kept, [1], [0], [slots]))
    is_kept = emit(op.greater_equal(slots_kept, relax.const(0, "int64")))
    slot = emit(op.maximum(slots_kept, relax.const(0, "int64")))
    boxes_per_class = relax.const(int(count), "int64")
    class_and_box = [op.floor_divide(slot, boxes_per_class), op.floor_mod(slot, boxes_per_class)]
    indices = emit(op.stack([emit(index) for index in class_and_box], 2))
    flat = emit(op.reshape(scores, [batch, slots]))
    values = emit(op.gather_elements(flat, slot, 1))
    values = emit(op.where(is_kept, values, relax.const(0.0, str(scores.ty.dtype))))
    counts = emit(op.sum(emit(op.astype(is_kept, "int64")), 1))
    return relax.Tuple([indices, values, counts])


def kept(boxes: Any, scores: Any, limit: int, overlap: float, least: float) -> Any:
    """The boxes that are kept, as an int64 tensor of shape (batch, classes * boxes + boxes + 2).

    The first classes * boxes elements of an image are class * boxes + box for each box that is kept, then -1.
    The elements after that are scratch memory: a 1 for each box that is suppressed, the best box, and the
    number of boxes kept. `limit`: greatest number of boxes of a class; `overlap`: limit of the intersection
    over union; `least`: score threshold.
    """
    batch, classes, count = scores.shape
    slots = classes * count

    def write(sources: Any, out: Any) -> Any:
        x, score = sources
        with IRBuilder() as ir, script.parallel(int64(0), batch) as image:
            results = _ImageResults(out, image, slots, count)
            get, put, best_at, total_at = results.get, results.put, results.best_at, results.total_at
            with script.serial(int64(0), slots) as slot:
                put(int64(-1), slot)
            put(int64(0), total_at)
            with script.serial(int64(0), classes) as kind:
                with script.serial(int64(0), count) as box:
                    is_below = tirx.BufferLoad(score, [image, kind, box]) < tirx.const(least, score.dtype)
                    put(tirx.Cast("int64", is_below), slots + box)
                with script.serial(int64(0), int64(min(limit, int(count)))):
                    _pick(score, image, kind, results)
                    with script.If(get(best_at) >= 0), script.Then():
                        put(kind * count + get(best_at), get(total_at))
                        put(get(total_at) + 1, total_at)
                        with script.serial(int64(0), count) as box:
                            shared = _overlap(x, image, get(best_at), box) > tirx.const(overlap, x.dtype)
                            with script.If(tirx.any(shared, box == get(best_at))), script.Then():
                                put(int64(1), slots + box)
        return ir.get()

    shape = [batch, slots + count + 2]
    buffer = tirx.decl_buffer(shape, "int64", "kept")
    return te.extern(
        [shape], [boxes, scores], lambda i, o: write(i, o[0]), dtype="int64", out_buffers=[buffer]
    )


@dataclass(frozen=True)
class _ImageResults:
    """The elements of one image in the result of `kept`, by position: `slots` slots, then scratch memory.

    `slots`: classes * boxes. `count`: number of boxes.
    """

    buffer: Any
    image: Any
    slots: Any
    count: Any

    @property
    def best_at(self) -> Any:
        """Position of the number of the best box."""
        return self.slots + self.count

    @property
    def total_at(self) -> Any:
        """Position of the number of boxes that are kept."""
        return self.slots + self.count + 1

    def get(self, position: Any) -> Any:
        return tirx.BufferLoad(self.buffer, [self.image, position])

    def put(self, value: Any, position: Any) -> None:
        script.buffer_store(self.buffer, value, [self.image, position])


def _pick(score: Any, image: Any, kind: Any, results: _ImageResults) -> None:
    """Store at `best_at` the best box of class `kind` that is not suppressed.

    Of equal boxes it is the first; -1 if all are suppressed.
    """
    get, put, best_at = results.get, results.put, results.best_at
    put(int64(-1), best_at)
    with (
        script.serial(int64(0), results.count) as box,
        script.If(get(results.slots + box) == 0),
        script.Then(),
    ):
        best = tirx.BufferLoad(score, [image, kind, tirx.max(get(best_at), int64(0))])
        better = tirx.BufferLoad(score, [image, kind, box]) > best
        with script.If(tirx.any(get(best_at) < 0, better)), script.Then():
            put(box, best_at)


def _overlap(boxes: Any, image: Any, box: Any, other: Any) -> Any:
    """Intersection over union of two boxes; 0 if a box has no area."""
    dtype = boxes.dtype
    zero = tirx.const(0, dtype)

    def edge(index: Any, side: int) -> Any:
        return tirx.BufferLoad(boxes, [image, index, int64(side)])

    def area(index: Any) -> Any:
        height = tirx.max(edge(index, 2) - edge(index, 0), zero)
        return height * tirx.max(edge(index, 3) - edge(index, 1), zero)

    lengths = [
        tirx.max(
            tirx.min(edge(box, axis + 2), edge(other, axis + 2))
            - tirx.max(edge(box, axis), edge(other, axis)),
            zero,
        )
        for axis in (0, 1)
    ]
    shared = lengths[0] * lengths[1]
    union = area(box) + area(other) - shared
    least = tirx.max(union, tirx.const(1e-30, dtype))
    return tirx.Select(tirx.all(area(box) > zero, area(other) > zero), shared / least, zero)
