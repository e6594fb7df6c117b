"""Products of 8-bit integers with exact sums in int32, and the requantisation of the sums to 8 bits."""

import triton
import triton.language as tl

from .window import corners, gathered


@triton.jit
def _levels(
    total, bias, scale, shift, column,
    LOW: tl.constexpr, HIGH: tl.constexpr, ZERO_POINT: tl.constexpr,
):  # fmt: skip
    """Sums requantised to int32: clamp((total + bias) * scale + shift, LOW, HIGH) rounded, + ZERO_POINT.

    Ties are rounded to even: adding and subtracting 1.5 * 2^23 rounds to an integer, since float32 has no
    fractions at that magnitude, and LOW and HIGH are at most 2^8 in magnitude.
    """
    value = (total + tl.load(bias + column)).to(tl.float32) * tl.load(scale + column)
    if shift is not None:
        value += tl.load(shift + column)
    value = tl.minimum(tl.maximum(value, LOW), HIGH)
    return ((value + 12582912.0) - 12582912.0).to(tl.int32) + ZERO_POINT


@triton.jit
def product(
    x, w, bias, scale, shift, y, batch, height, width, out_height, out_width,
    CHANNELS: tl.constexpr, COLUMNS: tl.constexpr, W_DEPTH: tl.constexpr, SPLIT: tl.constexpr,
    FILTER_H: tl.constexpr, FILTER_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PAD_H: tl.constexpr, PAD_W: tl.constexpr, DILATE_H: tl.constexpr, DILATE_W: tl.constexpr,
    PADDING: tl.constexpr, ROWS: tl.constexpr, EDGES: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,
    ZERO_POINT: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """y (batch, out_height, out_width, COLUMNS) from x (batch, height, width, CHANNELS) of int8 or uint8.

    w (columns padded to N, W_DEPTH) of int8: a filter is a row, padded with zeros. ROWS and EDGES: see
    window.py. PADDING: value of x outside of the image. 128 is subtracted from uint8, which gives int8; bias
    compensates for it. bias, scale and shift: one element for each column, padded. SPLIT > 1: block z sums a
    part of the depth into y (SPLIT, pixels, COLUMNS) of int32.
    """
    row = tl.program_id(0) * M + tl.arange(0, M)
    column = tl.program_id(1) * N + tl.arange(0, N)
    part = tl.program_id(2)
    rows = batch * out_height * out_width
    image, top, left = corners(row, out_height, out_width, STRIDE_H, STRIDE_W, PAD_H, PAD_W)
    total = tl.zeros((M, N), tl.int32)
    run: tl.constexpr = FILTER_W * CHANNELS if ROWS else CHANNELS
    runs: tl.constexpr = FILTER_H if ROWS else FILTER_H * FILTER_W
    steps: tl.constexpr = runs * ((run + K - 1) // K)
    steps_of_part: tl.constexpr = (steps + SPLIT - 1) // SPLIT
    for step in tl.range(part * steps_of_part, tl.minimum(part * steps_of_part + steps_of_part, steps)):
        a = gathered(
            x, row < rows, image, top, left, step, height, width,
            CHANNELS, run, FILTER_W, DILATE_H, DILATE_W, ROWS, EDGES, PADDING, K,
        )  # fmt: skip
        if a.dtype == tl.uint8:
            a = (a ^ 128).to(tl.int8, bitcast=True)
        k = step * K + tl.arange(0, K)
        total = tl.dot(a, tl.load(w + column[None, :] * W_DEPTH + k[:, None]), total, out_dtype=tl.int32)
    is_written = (row < rows)[:, None] & (column < COLUMNS)[None, :]
    index = row[:, None] * COLUMNS + column[None, :]
    if SPLIT > 1:
        tl.store(y + part * rows * COLUMNS + index, total, mask=is_written)
    else:
        levels = _levels(total, bias, scale, shift, column[None, :], LOW, HIGH, ZERO_POINT)
        tl.store(y + index, levels.to(y.dtype.element_ty), mask=is_written)


@triton.jit
def depthwise(
    x, w, bias, scale, shift, y, batch, height, width, out_height, out_width,
    COLUMNS: tl.constexpr, W_COLUMNS: tl.constexpr, FILTER_H: tl.constexpr, FILTER_W: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    DILATE_H: tl.constexpr, DILATE_W: tl.constexpr, PADDING: tl.constexpr, LOW: tl.constexpr,
    HIGH: tl.constexpr, ZERO_POINT: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """y (batch, out_height, out_width, COLUMNS), each channel from that of x (batch, height, width, COLUMNS).

    w (FILTER_H * FILTER_W, W_COLUMNS) of int8; W_COLUMNS is COLUMNS padded to N with zeros. PADDING: value of
    x outside of the image. A block computes M pixels of N channels.
    """
    row = tl.program_id(0) * M + tl.arange(0, M)
    column = tl.program_id(1) * N + tl.arange(0, N)
    rows = batch * out_height * out_width
    image, top, left = corners(row, out_height, out_width, STRIDE_H, STRIDE_W, PAD_H, PAD_W)
    total = tl.zeros((M, N), tl.int32)
    is_column = (column < COLUMNS)[None, :]
    for tap in tl.static_range(FILTER_H * FILTER_W):
        in_h = top + tap // FILTER_W * DILATE_H
        in_w = left + tap % FILTER_W * DILATE_W
        inside = ((row < rows) & (in_h >= 0) & (in_h < height) & (in_w >= 0) & (in_w < width))[:, None]
        pixel = ((image * height + in_h) * width + in_w)[:, None]
        a = tl.load(x + pixel * COLUMNS + column[None, :], mask=inside & is_column, other=PADDING)
        total += a.to(tl.int32) * tl.load(w + tap * W_COLUMNS + column).to(tl.int32)[None, :]
    levels = _levels(total, bias, scale, shift, column[None, :], LOW, HIGH, ZERO_POINT)
    is_written = (row < rows)[:, None] & is_column
    tl.store(y + row[:, None] * COLUMNS + column[None, :], levels.to(y.dtype.element_ty), mask=is_written)


@triton.jit
def sum_parts(
    parts, bias, scale, shift, y, rows,
    COLUMNS: tl.constexpr, SPLIT: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,
    ZERO_POINT: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """y (rows, COLUMNS): the sum of parts (SPLIT, rows, COLUMNS) of int32, requantised."""
    index = tl.program_id(0) * N + tl.arange(0, N)
    inside = index < rows * COLUMNS
    total = tl.zeros((N,), tl.int32)
    for part in tl.static_range(SPLIT):
        total += tl.load(parts + part * rows * COLUMNS + index, mask=inside, other=0)
    levels = _levels(total, bias, scale, shift, index % COLUMNS, LOW, HIGH, ZERO_POINT)
    tl.store(y + index, levels.to(y.dtype.element_ty), mask=inside)
