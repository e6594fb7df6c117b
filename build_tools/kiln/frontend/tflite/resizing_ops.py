"""Converters of TFLite's RESIZE operators, where TVM 0.27 divides by 0 or LiteRT computes with integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx
from tvm.ir import Expr

from kiln.frontend.tflite.operands import TfliteOperands

op = relax.op
_BITS = 10  # of the fraction of a position in LiteRT's integer kernel


def resize(table: str, method: str) -> Callable[[TfliteOperands], Any]:
    """RESIZE_… of int16, and with aligned corners to one row or column, which is a copy of the first."""

    def convert(node: TfliteOperands) -> Any:
        sizes, options = node.result_shape()[1:3], node.options(table)
        linear = method == "linear"
        if linear and node.result_dtype() == "int16":
            return _in_integers(node, options)
        if not options.AlignCorners() or 1 not in sizes:
            return None
        first = [axis for axis, size in enumerate(sizes, 1) if size == 1]

        def cut(expr: Expr) -> Any:
            return node.emit(op.strided_slice(expr, first, [0] * len(first), [1] * len(first)))

        if len(first) == 2:
            return cut(node.raw(0))
        cut_off, twice = cut(node.real(0) if linear else node.raw(0)), [max(size, 2) for size in sizes]
        resized = op.image.resize2d(cut_off, twice, None, "NHWC", method, "align_corners", "")
        return node.store(cut(node.emit(resized))) if linear else cut(node.emit(resized))

    return convert


def _in_integers(node: TfliteOperands, options: Any) -> Any:
    """RESIZE_BILINEAR of int16 as LiteRT computes it: positions with 10 fractional bits, one rounding.

    With 65,536 levels the rounding of positions matters: it changes results by up to a hundred levels. They
    are computed from the image's sizes, one of which may be dynamic.
    """
    node.check_same_quantisation(0, 0)
    height, width = (_int64(size) for size in node.result_shape()[1:3])

    def compute(x: Expr) -> Any:
        def element(batch: Expr, row: Expr, column: Expr, channel: Expr) -> Expr:
            rows = _places(row, x.shape[1], height, options)
            columns = _places(column, x.shape[2], width, options)
            terms = [
                tirx.Cast("int64", x(batch, at_row, at_column, channel)) * (of_row * of_column)
                for at_row, of_row in rows
                for at_column, of_column in columns
            ]
            total = terms[0] + terms[1] + terms[2] + terms[3]
            # Half away from 0: the magnitude is rounded up.
            magnitude = (tirx.abs(total) + _int64(1 << (2 * _BITS - 1))) >> _int64(2 * _BITS)
            return tirx.Cast("int16", tirx.Select(total < _int64(0), -magnitude, magnitude))

        return te.compute((x.shape[0], height, width, x.shape[3]), element, name="resized")

    return node.emit_te(compute, node.raw(0), name="resized")


def _places(index: Expr, size: Expr, result: Expr, options: Any) -> list[tuple[Expr, Expr]]:
    """The two places of an axis of `size` elements between which a result lies, with their weights."""
    one, place = 1 << _BITS, tirx.Cast("int64", index)
    aligned = options.AlignCorners() and int(result) > 1
    span, parts = (size - _int64(1), int(result) - 1) if aligned else (size, int(result))
    step = tirx.floordiv(span * _int64(one) + _int64(parts // 2), _int64(parts))
    position = place * step
    if options.HalfPixelCenters():
        position = position + (step >> _int64(1)) - _int64(one // 2)

    def inside(number: Expr) -> Expr:
        return tirx.max(tirx.min(number >> _int64(_BITS), size - _int64(1)), _int64(0))

    below, above = inside(position), inside(position + _int64(one - 1))
    weight = position - below * _int64(one)
    return [(below, _int64(one) - weight), (above, weight)]


def _int64(value: int) -> Expr:
    return tirx.IntImm("int64", int(value))


CONVERTERS: dict[str, Callable[[TfliteOperands], Any]] = {
    "RESIZE_BILINEAR": resize("ResizeBilinearOptions", "linear"),
    "RESIZE_NEAREST_NEIGHBOR": resize("ResizeNearestNeighborOptions", "nearest_neighbor"),
}
