"""Resized images of quantised tensors without floats: positions and weights are constants or integers.

The nearest neighbour is a look-up along each axis. A bilinear interpolation is two weighted sums, in 32 bits,
with weights of 11 bits: its error is below 0.1 of a level of 8 bits, before one rounding. Of dynamic sizes,
the position of a nearest neighbour is a quotient of integers.
Needs: for bilinear interpolation sizes that are known. Guarantees: other methods and modes stay as they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te, tirx

from kiln.extents import shape_of
from kiln.graph.bindings import Array, CallRewriter, const, operator
from kiln.lower.linear_sums import BYTES, LEVELS, dequantised

_BITS = 11  # of a weight: two of them and a level have 30
_EPSILON = np.float32(1e-5)  # by which TVM moves positions before it rounds them down
_MODES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
_MOST_PLACES = 1 << 15


def nearest(rewriter: CallRewriter, call: relax.Call) -> Any:
    """Look-ups by constants for an image.resize2d of integers to the nearest neighbours; else None."""
    if str(call.attrs.method) != "nearest_neighbor" or str(call.args[0].ty.dtype) not in LEVELS:
        return None
    rounding, mode = str(call.attrs.rounding_method), str(call.attrs.coordinate_transformation_mode)
    if rounding not in ("", "floor", "ceil", "round", "round_prefer_ceil", "round_prefer_floor"):
        return None
    rounding = rounding or ("round" if mode == "align_corners" else "floor")
    axes, result = _axes(call), call.args[0]
    if axes is None:
        return _of_dynamic_sizes(rewriter, call, rounding)
    for axis, size, count in axes:
        position = _positions(size, count, mode)
        half = np.float32(0.5)
        places = {
            "floor": np.floor(position + _EPSILON),
            "ceil": np.ceil(position - _EPSILON),
            "round_prefer_floor": np.ceil(position - half),
        }.get(rounding, np.floor(position + half))
        result = rewriter.emit(_taken(result, np.clip(places, 0, size - 1), axis))
    return result


def _of_dynamic_sizes(rewriter: CallRewriter, call: relax.Call, rounding: str) -> Any:
    """The nearest neighbours in an image of which a size is dynamic; None for another layout or mode."""
    layout, mode, shape = (
        str(call.attrs.layout),
        str(call.attrs.coordinate_transformation_mode),
        shape_of(call),
    )
    if layout not in ("NHWC", "NCHW") or mode not in _MODES:
        return None
    if all(isinstance(size, int) for size in (*shape, *shape_of(call.args[0]))):
        return None

    def compute(image: Any) -> Any:
        def element(*at: Any) -> Any:
            places = list(at)
            for axis in map(layout.index, "HW"):
                size, count = image.shape[axis], tirx.IntImm("int64", 0) + shape[axis]
                place = _place(at[axis], size, count, mode, rounding)
                places[axis] = tirx.max(tirx.min(place, size - 1), 0)
            return image(*places)

        return te.compute(shape, element, name="resized")

    return rewriter.builder_.call_te(compute, call.args[0], primfunc_name_hint="resized")


def _place(index: Any, size: Any, count: Any, mode: str, rounding: str) -> Any:
    """The position of result `index` of `count` along an axis of `size`, rounded down or to the nearest.

    As a quotient, since positions are multiples of 1 / (2 count): nothing is rounded before.
    """
    if mode == "align_corners":
        above, below = 2 * index * (size - 1), 2 * tirx.max(count - 1, 1)
    elif mode == "asymmetric":
        above, below = 2 * index * size, 2 * count
    else:
        above, below = (2 * index + 1) * size - count, 2 * count
    half = tirx.floordiv(below, 2)
    added = {"floor": 0, "ceil": below - 1, "round_prefer_floor": half - 1}.get(rounding, half)
    place = tirx.floordiv(above + added, below)
    return tirx.Select(count == 1, index, place) if mode == "pytorch_half_pixel" else place


def bilinear(rewriter: CallRewriter, expr: relax.Expr, step: float, level: int, dtype: str) -> Any:
    """A dequantised image, resized linearly, on the integers of its grid `step`, `level`; else None."""
    call = rewriter.definition(expr)
    if operator(call) != "relax.image.resize2d" or str(call.attrs.method) != "linear":
        return None
    source, axes = dequantised(rewriter, call.args[0]), _axes(call)
    if source is None or axes is None or dtype not in BYTES or str(source[0].ty.dtype) != dtype:
        return None
    if source[2] != level or abs(source[1] / step - 1.0) > 1e-6:
        return None
    op, emit = relax.op, rewriter.emit
    total = emit(op.astype(source[0], "int32"))
    for axis, size, count in axes:
        position = _positions(size, count, str(call.attrs.coordinate_transformation_mode))
        below = np.floor(position)
        above_share: Array = np.round((position - below) * 2.0**_BITS)
        shape = [-1 if other == axis else 1 for other in range(4)]
        parts = []
        for places, share in ((below, 2.0**_BITS - above_share), (below + 1, above_share)):
            taken = emit(_taken(total, np.clip(places, 0, size - 1), axis))
            parts.append(emit(op.multiply(taken, const(share.reshape(shape), "int32"))))
        total = emit(op.add(*parts))
    half = const(1 << (2 * _BITS - 1), "int32")
    rounded = emit(op.right_shift(emit(op.add(total, half)), const(2 * _BITS, "int32")))
    return op.astype(rounded, dtype)


def _axes(call: relax.Call) -> list[tuple[int, int, int]] | None:
    """The axes of height and width with their sizes before and after; None where these are not known."""
    layout, attrs = str(call.attrs.layout), call.attrs
    before, after = shape_of(call.args[0]), shape_of(call)
    if layout not in ("NHWC", "NCHW") or str(attrs.coordinate_transformation_mode) not in _MODES:
        return None
    axes = [(axis, before[axis], after[axis]) for axis in map(layout.index, "HW")]
    known = all(isinstance(size, int) for _, *sizes in axes for size in sizes)
    return axes if known and all(0 < count < _MOST_PLACES for _, _, count in axes) else None


def _positions(size: int, count: int, mode: str) -> Array:
    """The positions of `count` results along an axis of `size`, in float32."""
    places, half = np.arange(count, dtype="float32"), np.float32(0.5)
    scale = np.float32(size) / np.float32(count)
    positions: Array = (places + half) * scale - half
    if mode == "align_corners":
        positions = places * (np.float32(size - 1) / np.float32(max(count - 1, 1)))
    elif mode == "asymmetric":
        positions = places * scale
    elif mode == "pytorch_half_pixel" and count == 1:
        positions = places
    return positions


def _taken(data: Any, places: Array, axis: int) -> Any:
    return relax.op.take(data, const(places, "int32"), axis, "clip")
