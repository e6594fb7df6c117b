"""Operators of ONNX Runtime (domain com.microsoft) that no other operator resembles.

They are products of 16-bit integers, regions of images by TensorFlow's definition, and the n-grams of a text
that may not come again.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import te, tirx

from kiln.extents import Extent
from kiln.frontend.onnx.body import Body, Expansion
from kiln.frontend.onnx.value import not_known


def matmul_integer16(body: Body) -> list[str]:
    """MatMulInteger16: the product of two tensors of 16-bit integers, whose sums have 32 bits and wrap."""
    return [body.op("MatMul", *(body.cast(body.input(index), "int32") for index in (0, 1)))]


def ngram_repeat_block(body: Body) -> list[str]:
    """NGramRepeatBlock: scores, -inf for each token that would end an n-gram which the text has already.

    Texts have the shape [rows, length], scores [rows, number of tokens].
    """
    _check_axes(body, 2, 2)
    _check_rows(body, 0, 1)
    ids, scores = (body.tensor(body.input(index)) for index in (0, 1))
    size = int(body.required("ngram_size"))
    if size < 1:
        raise ValueError(f"its attribute 'ngram_size' is {size}, allowed: 1 and more")
    length: Extent = body.shape(body.input(0))[1]
    if isinstance(length, int) and length < size:
        return [body.op("Identity", body.input(1))]

    def compute(text: Any, score: Any) -> Any:
        rows, begins = text.shape[0], length - (size - 1)

        def begins_alike(row: Any, begin: Any) -> Any:
            alike = [text(row, begin + k) == text(row, length - (size - 1) + k) for k in range(size - 1)]
            return tirx.Cast("int32", tirx.all(*alike) if alike else tirx.const(True, "bool"))

        alike = te.compute([rows, begins], begins_alike, name="alike")
        place = te.reduce_axis((0, begins), name="k")

        def times(row: Any, token: Any) -> Any:
            ends = text(row, place + (size - 1)) == tirx.Cast(str(text.dtype), token)
            return te.sum(tirx.Select(ends, alike(row, place), tirx.const(0, "int32")), axis=place)

        found = te.compute(score.shape, times, name="found")
        least = tirx.const(-math.inf, str(score.dtype))
        return te.compute(
            score.shape, lambda *at: tirx.Select(found(*at) > 0, least, score(*at)), name="scores"
        )

    return [body.bind(body.emit_te(compute, ids, scores, hint="ngram_repeat_block"))]


def crop_and_resize(body: Body) -> list[str]:
    """CropAndResize: a region of an image for each row of the second input, resized to one size.

    A region is (y1, x1, y2, x2), in which 0 and 1 are the centres of the first and the last row or column.
    Its parts outside of the image have one value.
    """
    crop_size = body.constant(body.input(3))
    if crop_size is None:
        raise not_known(body.input(3))
    _check_axes(body, 4, 2, 1)
    _check_rows(body, 1, 2)
    if body.shape(body.input(1))[1] != 4 or crop_size.size != 2:
        raise ValueError("its inputs 'rois' and 'crop_size' have other than 4 columns and 2 elements")
    height, width = (int(size) for size in crop_size.reshape(-1))
    mode = body.only("mode", "bilinear", "nearest")
    beyond = float(body.attribute("extrapolation_value", 0.0))
    x, rois, images = (body.tensor(body.input(index)) for index in range(3))

    def compute(x: Any, rois: Any, images: Any) -> Any:
        def inner(region: Any, channel: Any, row: Any, column: Any) -> Any:
            image = _limited(tirx.Cast("int64", images(region)), x.shape[0])
            y, rows = _position(rois(region, 0), rois(region, 2), row, height, x.shape[2])
            across, columns = _position(rois(region, 1), rois(region, 3), column, width, x.shape[3])

            def at(i: Any, j: Any) -> Any:
                return x(image, channel, _limited(i, x.shape[2]), _limited(j, x.shape[3]))

            if mode == "nearest":
                value = at(*(tirx.Cast("int64", tirx.round(place)) for place in (y, across)))
            else:
                i, j = (tirx.Cast("int64", tirx.floor(place)) for place in (y, across))
                down, right = y - tirx.Cast("float32", i), across - tirx.Cast("float32", j)
                upper, lower = (at(k, j) + (at(k, j + 1) - at(k, j)) * right for k in (i, i + 1))
                value = upper + (lower - upper) * down
            return tirx.Select(tirx.all(rows, columns), value, tirx.const(beyond, "float32"))

        return te.compute([rois.shape[0], x.shape[1], height, width], inner, name="crops")

    return [body.bind(body.emit_te(compute, x, rois, images, hint="crop_and_resize"))]


def _check_axes(body: Body, *ranks: int) -> None:
    """Raise ValueError unless the first inputs have so many axes."""
    found = [body.rank(body.input(index)) for index in range(len(ranks))]
    if found != list(ranks):
        raise ValueError(f"its inputs have {found} axes, allowed: {list(ranks)}")


def _check_rows(body: Body, first: int, second: int) -> None:
    """Raise ValueError unless the first axes of two inputs have the same size."""
    sizes = [body.shape(body.input(index))[0] for index in (first, second)]
    if not body.symbols.equal(*sizes):
        raise ValueError(
            f"its inputs {first} and {second} have {sizes[0]} and {sizes[1]} rows, allowed: the same number"
        )


def _position(first: Any, last: Any, step: Any, count: int, size: Any) -> tuple[Any, Any]:
    """Where element `step` of `count` between `first` and `last` is on an axis, and whether it is inside."""
    end = tirx.Cast("float32", size - 1)
    if count > 1:
        place = first * end + tirx.Cast("float32", step) * ((last - first) * end / np.float32(count - 1))
    else:
        place = (first + last) * end * tirx.const(0.5, "float32")
    return place, tirx.all(place >= tirx.const(0.0, "float32"), place <= end)


def _limited(index: Any, size: Any) -> Any:
    """An index inside of an axis, whatever the data is."""
    zero, last = tirx.const(0, "int64"), tirx.Cast("int64", size - 1)
    return tirx.max(tirx.min(index, last), zero)


MICROSOFT: dict[str, Expansion] = {
    "CropAndResize": crop_and_resize,
    "MatMulInteger16": matmul_integer16,
    "NGramRepeatBlock": ngram_repeat_block,
}
