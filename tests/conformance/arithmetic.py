"""Operators in plain numpy, in float64 or int64, to compare kernels with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def conv2d(
    x: Array, weights: Array, stride: int = 1, padding: Sequence[int] = (0, 0, 0, 0), dilation: int = 1,
    groups: int = 1, fill: float = 0.0,
) -> Array:  # fmt: skip
    """A convolution of NHWC by HWIO; padding is top, left, bottom, right, filled with `fill`."""
    wide = np.float64 if x.dtype.kind == "f" else np.int64
    top, left, bottom, right = padding
    image = np.pad(x.astype(wide), [(0, 0), (top, bottom), (left, right), (0, 0)], constant_values=wide(fill))
    rows, columns, depth, outputs = weights.shape
    height = (image.shape[1] - (rows - 1) * dilation - 1) // stride + 1
    width = (image.shape[2] - (columns - 1) * dilation - 1) // stride + 1
    result = np.zeros((x.shape[0], height, width, outputs), wide)
    share = outputs // groups
    for group in range(groups):
        channels = slice(group * depth, (group + 1) * depth)
        channels_of_group = slice(group * share, (group + 1) * share)
        for i in range(rows):
            for j in range(columns):
                top, left = i * dilation, j * dilation
                window = image[
                    :,
                    top : top + (height - 1) * stride + 1 : stride,
                    left : left + (width - 1) * stride + 1 : stride,
                    channels,
                ]
                result[..., channels_of_group] += window @ weights[i, j, :, channels_of_group].astype(wide)
    return result


def pool2d(x: Array, size: int, stride: int, padding: Sequence[int], kind: str, count_pad: bool) -> Array:
    """Maximum or average pooling of NHWC data, sizes rounded down."""
    top, left, bottom, right = padding
    widths = [(0, 0), (top, bottom), (left, right), (0, 0)]
    empty = -np.inf if kind == "max" else 0.0
    image = np.pad(x.astype("float64"), widths, constant_values=empty)
    inside = np.pad(np.ones(x.shape), widths, constant_values=float(count_pad))
    height = (image.shape[1] - size) // stride + 1
    width = (image.shape[2] - size) // stride + 1
    result = np.zeros((x.shape[0], height, width, x.shape[3]))
    for h in range(height):
        for w in range(width):
            at = (slice(None), slice(h * stride, h * stride + size), slice(w * stride, w * stride + size))
            if kind == "max":
                result[:, h, w] = image[at].max(axis=(1, 2))
            else:
                result[:, h, w] = image[at].sum(axis=(1, 2)) / inside[at].sum(axis=(1, 2))
    return result


def softmax(x: Array, axis: int) -> Array:
    wide = x.astype("float64")
    powers = np.exp(wide - wide.max(axis=axis, keepdims=True))
    return np.asarray(powers / powers.sum(axis=axis, keepdims=True))


def quantize(x: Array, scale: float, zero_point: int, dtype: str) -> Array:
    """round(x / scale) + zero point, ties to even, saturated; in float64."""
    limits = np.iinfo(dtype)
    return np.clip(np.round(x / scale) + zero_point, limits.min, limits.max).astype(dtype)
