"""Rounding of float32 weights to numbers that an encoding of params/encodings.py stores without loss."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from kiln.arrays import Array
from kiln.config.sizes import ceil_div
from kiln.params.encodings import find

# Smallest and largest scale that float16 holds with all its digits.
_HALF_RANGE = (6.2e-5, 6.5e4)
# Fractions of the greatest magnitude of a block that its greatest level may stand for; the best is used.
_CLIPPED = tuple(np.linspace(0.7, 1.0, 7))
_HALVES = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16}
BITS = {"fp16": 16, "bf16": 16, "int8": 8, "int4": 4}


def compressed(value: Array, kind: str, block: int | None) -> Array | None:
    """A matrix [k, column] of float32, rounded to `kind` in blocks of `block` along k; None: whole columns.

    None if the result could not be stored in that type, as with fp16 and a weight beyond its range.
    """
    with np.errstate(over="ignore"):
        rounded = (
            value.astype(_HALVES[kind]).astype(np.float32)
            if kind in _HALVES
            else _rounded(value, kind, block)
        )
    encoding = find(rounded)
    return None if encoding is None or encoding.bits > BITS[kind] else rounded


def _rounded(matrix: Array, kind: str, block: int | None) -> Array:
    """The nearest multiples of one scale for each block of each column."""
    rows, columns = matrix.shape
    length = min(block or rows, rows)
    count = ceil_div(rows, length)
    padded = np.pad(matrix, ((0, count * length - rows), (0, 0)))
    blocks = padded.reshape(count, length, columns)
    most = 127 if kind == "int8" else 7
    greatest = np.abs(blocks).max(1, keepdims=True)
    best, error = np.zeros_like(blocks), np.full(greatest.shape, np.inf, np.float32)
    for fraction in _CLIPPED if kind == "int4" else (1.0,):
        scales = _scales(greatest * np.float32(fraction / most))
        scaled = np.clip(np.rint(blocks / scales), -most, most) * scales
        now = ((scaled - blocks) ** 2).sum(1, keepdims=True)
        best, error = np.where(now < error, scaled, best), np.minimum(now, error)
    rounded: Array = best.reshape(-1, columns)[:rows].astype(np.float32)
    return rounded


def _scales(steps: Array) -> Array:
    """The scales, in float16 where all of them are in its normal range; 1 for blocks of zeros."""
    scales = np.where(steps > 0, steps, 1).astype(np.float32)
    if scales.min() >= _HALF_RANGE[0] and scales.max() <= _HALF_RANGE[1]:
        return scales.astype(np.float16).astype(np.float32)
    return scales
