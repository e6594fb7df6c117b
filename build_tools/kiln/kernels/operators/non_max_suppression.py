"""Non-maximum suppression: of boxes that overlap, for each class, the one with the best score.

TVM's own form sorts by a function of its runtime. Here the best box that is left is looked for again and
again, in plain loops over one image, which a GPU gives to one thread. Source: TensorFlow Lite's
DetectionPostProcess (`detection_postprocess.cc`): scores at least the threshold count, of equal ones the
first, and boxes go whose intersection over union with a better one is above the threshold.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx
from tvm.ir import GenericConst
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as script

from kiln.tir.symbols import int64


def all_class_non_max_suppression(builder: Any, call: Any) -> Any:
    """The rule for relax.vision.all_class_non_max_suppression in TensorFlow's form.

    It gives (batch, class * box, 2) indices of class and box, classes one after the other and in each the
    best box first, their (batch, class * box) scores, and (batch,) how many there are; what lies behind is 0.
    Raises ValueError where limits are not known, and for ONNX's form, whose number of rows is in the data.
    """
    boxes, scores, *limits = call.args
    if str(call.attrs.output_format) != "tensorflow":
        raise ValueError("how many boxes it keeps is in the data, and sizes must be known at build time")
    if not all(isinstance(limit, GenericConst) for limit in limits):
        raise ValueError("its limits are not known at build time")
    most, overlap, least = (limit.value.numpy().item() for limit in limits)
    batch, classes, count = scores.ty.shape
    found = builder.emit(
        builder.call_te(
            lambda x, s: kept(x, s, int(most), float(overlap), float(least)), boxes, scores,
            primfunc_name_hint="non_max_suppression",
        )
    )  # fmt: skip
    op, emit, slots = relax.op, builder.emit, classes * count
    found = emit(op.strided_slice(found, [1], [0], [slots]))
    real = emit(op.greater_equal(found, relax.const(0, "int64")))
    place = emit(op.maximum(found, relax.const(0, "int64")))
    number = relax.const(int(count), "int64")
    pair = [op.floor_divide(place, number), op.floor_mod(place, number)]
    indices = emit(op.stack([emit(one) for one in pair], 2))
    flat = emit(op.reshape(scores, [batch, slots]))
    values = emit(op.gather_elements(flat, place, 1))
    values = emit(op.where(real, values, relax.const(0.0, str(scores.ty.dtype))))
    total = emit(op.sum(emit(op.astype(real, "int64")), 1))
    return relax.Tuple([indices, values, total])


def kept(boxes: Any, scores: Any, most: int, overlap: float, least: float) -> Any:
    """(batch, class * box + box + 2) int64: class * boxes + box of what is kept, then -1.

    Behind these places is scratch memory: a 1 for each box that is out, the best box, and how many are kept.
    """
    batch, classes, count = scores.shape
    slots = classes * count
    best_at, total_at = slots + count, slots + count + 1

    def write(sources: Any, out: Any) -> Any:
        x, score = sources
        with IRBuilder() as made, script.parallel(int64(0), batch) as image:

            def get(place: Any) -> Any:
                return tirx.BufferLoad(out, [image, place])

            def put(value: Any, place: Any) -> None:
                script.buffer_store(out, value, [image, place])

            with script.serial(int64(0), slots) as slot:
                put(int64(-1), slot)
            put(int64(0), total_at)
            with script.serial(int64(0), classes) as kind:
                with script.serial(int64(0), count) as box:
                    low = tirx.BufferLoad(score, [image, kind, box]) < tirx.const(least, score.dtype)
                    put(tirx.Cast("int64", low), slots + box)
                with script.serial(int64(0), int64(min(most, int(count)))):
                    _pick(score, image, kind, count, slots, best_at, get, put)
                    with script.If(get(best_at) >= 0), script.Then():
                        put(kind * count + get(best_at), get(total_at))
                        put(get(total_at) + 1, total_at)
                        with script.serial(int64(0), count) as box:
                            shared = _overlap(x, image, get(best_at), box) > tirx.const(overlap, x.dtype)
                            with script.If(tirx.any(shared, box == get(best_at))), script.Then():
                                put(int64(1), slots + box)
        return made.get()

    shape = [batch, slots + count + 2]
    buffer = tirx.decl_buffer(shape, "int64", "kept")
    return te.extern(
        [shape], [boxes, scores], lambda i, o: write(i, o[0]), dtype="int64", out_buffers=[buffer]
    )


def _pick(
    score: Any, image: Any, kind: Any, count: Any, slots: Any, best_at: Any, get: Any, put: Any
) -> None:
    """The best box of a class that is not out, the first of equal ones; -1 where there is none."""
    put(int64(-1), best_at)
    with script.serial(int64(0), count) as box, script.If(get(slots + box) == 0), script.Then():
        best = tirx.BufferLoad(score, [image, kind, tirx.max(get(best_at), int64(0))])
        better = tirx.BufferLoad(score, [image, kind, box]) > best
        with script.If(tirx.any(get(best_at) < 0, better)), script.Then():
            put(box, best_at)


def _overlap(boxes: Any, image: Any, one: Any, other: Any) -> Any:
    """The intersection of two boxes over their union; 0 for one without an area."""
    dtype = boxes.dtype
    zero = tirx.const(0, dtype)

    def at(box: Any, side: int) -> Any:
        return tirx.BufferLoad(boxes, [image, box, int64(side)])

    def area(box: Any) -> Any:
        return tirx.max(at(box, 2) - at(box, 0), zero) * tirx.max(at(box, 3) - at(box, 1), zero)

    sides = [
        tirx.max(
            tirx.min(at(one, axis + 2), at(other, axis + 2)) - tirx.max(at(one, axis), at(other, axis)), zero
        )
        for axis in (0, 1)
    ]
    shared = sides[0] * sides[1]
    union = area(one) + area(other) - shared
    least = tirx.max(union, tirx.const(1e-30, dtype))
    return tirx.Select(tirx.all(area(one) > zero, area(other) > zero), shared / least, zero)
