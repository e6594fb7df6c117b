"""Converters of TFLite's RESIZE operators, where TVM 0.27 divides by 0 or LiteRT computes with integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from kiln.frontend.tflite.operands import TfliteOperands, const

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

        def cut(expr: Any) -> Any:
            return node.emit(op.strided_slice(expr, first, [0] * len(first), [1] * len(first)))

        if len(first) == 2:
            return cut(node.raw(0))
        cut_off, twice = cut(node.real(0) if linear else node.raw(0)), [max(size, 2) for size in sizes]
        resized = op.image.resize2d(cut_off, twice, None, "NHWC", method, "align_corners", "")
        return node.store(cut(node.emit(resized))) if linear else cut(node.emit(resized))

    return convert


def _in_integers(node: TfliteOperands, options: Any) -> Any:
    """RESIZE_BILINEAR of int16 as LiteRT computes it: positions with 10 fractional bits, one rounding.

    With 65,536 levels the rounding of positions matters: it changes results by up to a hundred levels.
    """
    node.check_same_quantisation(0, 0)
    mixed = node.bind(op.astype(node.raw(0), "int64"))
    for axis in (1, 2):
        below, above, weight = _places(node.shape(0)[axis], node.result_shape()[axis], options)
        around = [-1 if other == axis else 1 for other in range(4)]
        parts = [
            op.multiply(
                node.bind(op.take(mixed, const(places, "int64"), axis)), const(share.reshape(around), "int64")
            )
            for places, share in ((below, (1 << _BITS) - weight), (above, weight))
        ]
        mixed = node.bind(op.add(*map(node.bind, parts)))
    # Half away from 0: the magnitude is rounded up.
    half, shift = const(1 << (2 * _BITS - 1), "int64"), const(2 * _BITS, "int64")
    magnitude = node.bind(op.right_shift(node.bind(op.add(node.bind(op.abs(mixed)), half)), shift))
    negative = node.bind(op.less(mixed, const(0, "int64")))
    return op.astype(node.bind(op.where(negative, node.bind(op.negative(magnitude)), magnitude)), "int16")


def _places(size: int, result: int, options: Any) -> tuple[Any, Any, Any]:
    """The two places of an axis between which each result lies, and the weight of the second one."""
    one = 1 << _BITS
    apart = (size - 1, result - 1) if options.AlignCorners() and result > 1 else (size, result)
    step = (one * apart[0] + apart[1] // 2) // apart[1]
    positions = np.arange(result, dtype=np.int64) * step
    if options.HalfPixelCenters():
        positions += step // 2 - one // 2
    below = np.clip(positions // one, 0, size - 1)
    above = np.clip(-(-positions // one), 0, size - 1)
    return below, above, positions - one * below


CONVERTERS: dict[str, Callable[[TfliteOperands], Any]] = {
    "RESIZE_BILINEAR": resize("ResizeBilinearOptions", "linear"),
    "RESIZE_NEAREST_NEIGHBOR": resize("ResizeNearestNeighborOptions", "nearest_neighbor"),
}
