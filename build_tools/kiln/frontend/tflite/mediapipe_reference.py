"""References in NumPy of MediaPipe's custom operators, after its public kernels (mediapipe/util/tflite).

All tensors are float32. The functions have the attributes that mediapipe.py reads from the custom options.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from kiln.arrays import Array
from kiln.config.sizes import ceil_div

NONE = (-1,)  # a list that the options do not have


def transposed_padding(size: int, length: int, stride: int, same: bool) -> int:
    """Rows or columns that a transposed convolution of `size` with padding SAME crops, at both ends."""
    return max(0, length - (size - 1) % stride - 1) if same else 0


def window_padding(size: int, length: int, stride: int, count: int) -> int:
    """Rows or columns before the first of `count` windows over `size`."""
    return max(0, ((count - 1) * stride + length - size) // 2)


def convolution_transpose_bias(x: Array, weights: Array, bias: Array, *, options: bytes) -> Array:
    """Convolution2DTransposeBias of [N, H, W, I] with weights [O, h, w, I] and a bias [O]."""
    padding, across, down = np.frombuffer(options[:12], "<i4").tolist()
    batch, height, width, _ = x.shape
    outputs, rows, columns, _ = weights.shape
    full_sizes = [stride * (size - 1) + length for size, stride, length in
             zip((height, width), (down, across), (rows, columns), strict=True)]  # fmt: skip
    result = np.zeros((batch, *full_sizes, outputs), np.float32)
    for row in range(rows):
        for column in range(columns):
            products = np.einsum("nhwi,oi->nhwo", x, weights[:, row, column])
            result[:, row : row + down * height : down, column : column + across * width : across] += products
    cut = [transposed_padding(height, rows, down, padding == 1),
           transposed_padding(width, columns, across, padding == 1)]  # fmt: skip
    top, left = cut[0] // 2, cut[1] // 2
    trimmed: Array = (
        result[:, top : top + full_sizes[0] - cut[0], left : left + full_sizes[1] - cut[1]] + bias
    )
    return trimmed


def max_pooling_with_argmax(x: Array, *, options: bytes) -> tuple[Array, Array]:
    """MaxPoolingWithArgmax2D: the maxima, and the place of each in its window plus 0.1, row by row."""
    padding, across, down, columns, rows, activation = np.frombuffer(options[:24], "<i4").tolist()
    batch, height, width, channels = x.shape
    sizes = [ceil_div(size, stride) if padding == 1 else (size - length + stride) // stride
             for size, length, stride in ((height, rows, down), (width, columns, across))]  # fmt: skip
    top, left = window_padding(height, rows, down, sizes[0]), window_padding(width, columns, across, sizes[1])
    least = np.finfo(np.float32).min
    best = np.full((batch, *sizes, channels), least, np.float32)
    position_of_best = np.full(best.shape, 0.1, np.float32)
    low, high = {0: (-math.inf, math.inf), 1: (0, math.inf), 2: (-1, 1), 3: (0, 6)}[activation]
    for y in range(sizes[0]):
        for x_ in range(sizes[1]):
            for row in range(rows):
                for column in range(columns):
                    source_index = y * down - top + row, x_ * across - left + column
                    if 0 <= source_index[0] < height and 0 <= source_index[1] < width:
                        value = x[:, source_index[0], source_index[1]]
                        more = value > best[:, y, x_]
                        best[:, y, x_] = np.where(more, value, best[:, y, x_])
                        position_of_best[:, y, x_] = np.where(
                            more, row * columns + column + 0.1, position_of_best[:, y, x_]
                        )
    return np.clip(best, low, high).astype(np.float32), position_of_best


def max_unpooling(x: Array, indices: Array, *, options: bytes) -> Array:
    """MaxUnpooling2D: each element at its position in its window, zeros elsewhere.

    The last of several at one position.
    """
    _, across, down, columns, rows = np.frombuffer(options[:20], "<i4").tolist()
    batch, height, width, channels = x.shape
    result = np.zeros((batch, height * rows, width * columns, channels), np.float32)
    top = window_padding(height * rows, rows, down, height)
    left = window_padding(width * columns, columns, across, width)
    index = indices.astype(np.int64)
    for y in range(height):
        for x_ in range(width):
            for n in range(batch):
                for channel in range(channels):
                    row, column = divmod(int(index[n, y, x_, channel]), columns)
                    target_index = y * down - top + row, x_ * across - left + column
                    if 0 <= target_index[0] < height * rows and 0 <= target_index[1] < width * columns:
                        result[n, target_index[0], target_index[1], channel] = x[n, y, x_, channel]
    return result


def transform_landmarks(x: Array, matrix: Array, *, dimensions: int, scale: float) -> Array:
    """TransformLandmarks: x and y of each point by the first two rows of a 4 x 4 matrix; z stays."""
    rows = matrix.reshape(4, 4)[:2].astype(np.float32) * np.array([1, 1, 1, scale], np.float32)
    size = dimensions or x.shape[-1]
    points = x.reshape(-1, size)
    result = points.copy()
    result[:, :2] = points[:, :2] @ rows[:, :2].T + rows[:, 3]
    shaped: Array = result.reshape(x.shape)
    return shaped


def transform_tensor(
    x: Array, matrix: Array, *, output_size: Sequence[int], output_height: int, output_width: int, mode: str
) -> Array:
    """TransformTensorBilinear: bilinear samples of [1, H, W, C] at transformed places; zeros outside."""
    _, high, wide, _ = x.shape
    rows = matrix.reshape(4, 4)[:2].astype(np.float32).copy()
    if output_size == NONE:  # version 2 transforms the centres of the elements
        rows[:, 3] += rows[:, 0] * np.float32(0.5) + rows[:, 1] * np.float32(0.5) - np.float32(0.5)
    height, width = (output_height, output_width) if output_size == NONE else output_size
    down, across = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    sample_points = [
        row[0] * across.astype(np.float32) + row[1] * down.astype(np.float32) + row[3] for row in rows
    ]
    inside = (
        (sample_points[0] >= 0)
        & (sample_points[0] <= wide - 1)
        & (sample_points[1] >= 0)
        & (sample_points[1] <= high - 1)
    )
    left, top = (np.where(inside, np.floor(value), 0).astype(np.int64) for value in sample_points)
    right, below = np.minimum(left + 1, wide - 1), np.minimum(top + 1, high - 1)
    x_part = np.where(inside, sample_points[0] - left, 0).astype(np.float32)[..., None]
    y_part = np.where(inside, sample_points[1] - top, 0).astype(np.float32)[..., None]
    image = x[0]
    upper = (1 - x_part) * image[top, left] + x_part * image[top, right]
    lower = (1 - x_part) * image[below, left] + x_part * image[below, right]
    return np.where(inside[..., None], y_part * lower + (1 - y_part) * upper, 0).astype(np.float32)[None]


def _turned(angle: Any) -> Array:
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]], np.float32)


def landmarks_to_matrix(x: Array, **options: Any) -> Array:
    """Landmarks2TransformMatrix: the 4 x 4 matrix from a crop around some points to the whole image."""
    newer = options["subset"] == NONE
    points = x.reshape(-1, 3)[:, :2].astype(np.float32)
    left, right = points[options["left_rotation_idx"]], points[options["right_rotation_idx"]]
    with np.errstate(divide="ignore", invalid="ignore"):
        if newer:
            angle = np.float32(options["target_rotation_radians"]) - np.arctan2(
                right[1] - left[1], right[0] - left[0]
            )
        else:
            angle = -np.arctan((right[1] - left[1]) / (right[0] - left[0]))
    chosen = points[list(options["subset_idxs"] if newer else options["subset"])] @ _turned(angle).T
    low, high = chosen.min(0), chosen.max(0)
    middle, size = _turned(-angle) @ ((low + high) / 2), high - low
    matrix = np.eye(4, dtype=np.float32)
    if newer:
        output = np.array([options["output_width"], options["output_height"]], np.float32)
        linear = _turned(-angle) * (np.array([options["scale_x"], options["scale_y"]]) * size / output)
        matrix[:2, :2], matrix[:2, 3] = linear, middle - linear @ (output / 2)
        return matrix[None]
    # Version 1 has coordinates from -1 to 1 on both sides, in which the middle of the crop is its origin.
    reach = np.float32(options["landmarks_range"])
    input_scale = (np.array(options["input_hw"][::-1], np.float32) - 1) / 2
    output_scale = 2 / (np.array(options["output_hw"][::-1], np.float32) - 1)
    crop = size * np.float32(options["bbox_size_multiplier"]) / reach
    linear = _turned(-angle) * crop
    shift = middle / reach * 2 - 1
    matrix[:2, :2] = input_scale[:, None] * linear * output_scale
    matrix[:2, 3] = input_scale * (shift - linear.sum(1)) + input_scale
    return matrix[None]
