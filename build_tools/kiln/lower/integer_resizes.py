"""Resized images of quantised tensors without floats: positions and weights are constants.

The nearest neighbour is a look-up along each axis. A bilinear interpolation is two weighted sums, in 32 bits,
with weights of 11 bits: its error is below 0.1 of a level of 8 bits, before one rounding.
Needs: sizes that are known. Guarantees: other methods and modes stay as they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from kiln.graph.bindings import Array, CallRewriter, const, operator, shape_of
from kiln.lower.linear_sums import BYTES, LEVELS, dequantised

_BITS = 11  # of a weight: two of them and a level have 30
_EPSILON = np.float32(1e-5)  # by which TVM moves positions before it rounds them down
_MODES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
_MOST_PLACES = 1 << 15


def nearest(rewriter: CallRewriter, call: Any) -> Any:
    """Look-ups by constants for an image.resize2d of integers to the nearest neighbours; else None."""
    if str(call.attrs.method) != "nearest_neighbor" or str(call.args[0].ty.dtype) not in LEVELS:
        return None
    axes = _axes(call)
    rounding = str(call.attrs.rounding_method)
    if axes is None or rounding not in ("", "floor", "round", "round_prefer_ceil"):
        return None
    result = call.args[0]
    for axis, size, count in axes:
        position = _positions(size, count, str(call.attrs.coordinate_transformation_mode))
        is_rounded = rounding.startswith("round") or (
            not rounding and str(call.attrs.coordinate_transformation_mode) == "align_corners"
        )
        places = np.floor(position + (np.float32(0.5) if is_rounded else _EPSILON))
        result = rewriter.emit(_taken(result, np.clip(places, 0, size - 1), axis))
    return result


def bilinear(rewriter: CallRewriter, expr: Any, step: float, level: int, dtype: str) -> Any:
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


def _axes(call: Any) -> list[tuple[int, int, int]] | None:
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
