"""Constant operands of QuantizeLinear and DequantizeLinear: what they are is computed at import.

Products of integers need weights that are constants, and converters of other nodes need numbers.
"""

from __future__ import annotations

import numpy as np

from kiln.arrays import Array
from kiln.frontend.onnx.body import Body


def axis_of(body: Body, data: str, default: int = 1) -> int:
    """Attribute `axis`, not negative. Raises ValueError for one outside of the tensor of several axes."""
    axis, rank = int(body.attribute("axis", default)), body.rank(data)
    if rank <= 1:
        return 0
    if not -rank <= axis < rank:
        raise ValueError(f"its attribute 'axis' is {axis}, allowed: {-rank}..{rank - 1}")
    return axis % rank


def signs_of_scale(body: Body, scale: str) -> tuple[str, Array] | None:
    """A constant scale without its signs, and the signs, of type float32; None where none is negative.

    A quantiser writes negative scales for biases of Gemm with a negative beta.
    """
    value = body.constant(scale)
    if value is None or not (value < 0).any():
        return None
    return body.const(np.abs(value)), np.sign(value).astype("float32")


def negated_levels(body: Body, data: str, signs: Array, axis: int) -> str | None:
    """An int32 constant such as a bias times the signs of its scale; None for other tensors."""
    value: Array | None = body.constant(data)
    if value is None or value.dtype != np.int32 or (value == np.iinfo(np.int32).min).any():
        return None
    if signs.size > 1 and (signs.ndim != 1 or value.ndim == 0 or value.shape[axis] != signs.size):
        return None
    shape = [1] * axis + [-1] + [1] * (value.ndim - axis - 1) if signs.size > 1 else []
    return body.const(value * signs.reshape(shape).astype(np.int32))


def without_zero_scales(body: Body, data: str, scale: str, zero: str) -> tuple[str, str]:
    """Constant levels and scales of the same numbers, with no scale of 0: its levels are zero points instead.

    Passes divide by scales. Scales of blocks, which none divides by, stay as they are.
    """
    scales, levels = body.constant(scale), body.constant(data)
    is_blocked = bool(int(body.attribute("block_size", 0))) and scales is not None and scales.ndim > 0
    if scales is None or levels is None or scales.all() or is_blocked:
        return data, scale
    points: Array | None = body.constant(zero) if zero else np.zeros((), levels.dtype)
    if points is None:
        return data, scale
    axis = axis_of(body, data)
    shape = [1] * axis + [-1] + [1] * (levels.ndim - axis - 1)
    spread = [array.reshape(shape if array.size > 1 else ()) for array in (scales, points)]
    kept = np.where(spread[0] == 0, spread[1], levels).astype(levels.dtype)
    other = np.abs(scales[scales != 0]).min(initial=1.0)
    return body.const(kept), body.const(np.where(scales == 0, other, scales).astype(scales.dtype))


def number_of(body: Body, data: str, scale: str, zero: str) -> Array | None:
    """(data - zero) * scale where these are constants of one element and at most one axis; else None.

    Converters need the numbers themselves, such as the value of Pad. Levels of int32 are biases, which
    integer sums start from.
    """
    arrays: list[Array | None] = [body.constant(name) for name in (data, scale, *([zero] if zero else []))]
    known = [array for array in arrays if array is not None and array.size == 1]
    if len(known) < len(arrays) or known[0].ndim > 1 or known[0].dtype == np.int32:
        return None
    body.accept_attributes("axis", "block_size")
    point = known[2].reshape(-1)[0].astype("int64") if zero else 0
    levels = (known[0].astype("int64") - point).astype("float32")
    result: Array = (levels * known[1].reshape(-1)[0].astype("float32")).astype(known[1].dtype)
    return result


def levels_of_constant(body: Body, data: str, scale: str, zero: str, least: int, most: int) -> Array | None:
    """The levels, from `least` to `most`, of a constant, such as weights that the file has in floats.

    They are of type float64; None where data, scale or zero point are not constant. Products of integers need
    their weights as constants, so that the levels are not left to the run.
    """
    values: list[Array | None] = [body.constant(name) for name in (data, scale, *([zero] if zero else []))]
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    real, axis, block = known[0], axis_of(body, data), int(body.attribute("block_size", 0))

    def spread(numbers: Array) -> Array:
        if numbers.size == 1:
            return numbers.reshape(())
        if block and numbers.ndim == real.ndim:
            return np.repeat(numbers, block, axis).take(range(real.shape[axis]), axis)
        return numbers.reshape([1] * axis + [-1] + [1] * (real.ndim - axis - 1))

    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        steps = np.rint(real.astype("float32") / spread(known[1]).astype("float32")).astype("float64")
    levels = np.nan_to_num(steps, nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    levels = levels + (spread(known[2]).astype("float64") if zero else 0.0)
    result: Array = np.clip(levels, least, most)
    return result
