"""NHWC convolutions of single channels: each output element is a sum over a window of its own channel."""

import triton
import triton.language as tl

from .epilogue import finish
from .window import corners


@triton.jit
def depthwise(
    x, w, bias, residual, y, batch, height, width, out_height, out_width,
    COLUMNS: tl.constexpr, W_COLUMNS: tl.constexpr, FILTER_H: tl.constexpr, FILTER_W: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    DILATE_H: tl.constexpr, DILATE_W: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    ACTIVATION: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, TF32: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """y (batch, out_height, out_width, COLUMNS) from x (batch, height, width, COLUMNS), with an epilogue.

    w (FILTER_H * FILTER_W, W_COLUMNS) in the type of x; W_COLUMNS is COLUMNS padded to N with zeros. Sums are
    float32. A block computes M pixels of N channels; the loads of all taps of a window are independent.
    """
    row = tl.program_id(0) * M + tl.arange(0, M)
    column = tl.program_id(1) * N + tl.arange(0, N)
    rows = batch * out_height * out_width
    image, top, left = corners(row, out_height, out_width, STRIDE_H, STRIDE_W, PAD_H, PAD_W)
    total = tl.zeros((M, N), tl.float32)
    for tap in tl.static_range(FILTER_H * FILTER_W):
        in_h = top + tap // FILTER_W * DILATE_H
        in_w = left + tap % FILTER_W * DILATE_W
        inside = ((row < rows) & (in_h >= 0) & (in_h < height) & (in_w >= 0) & (in_w < width))[:, None]
        if COLUMNS % N != 0:
            inside = inside & (column < COLUMNS)[None, :]
        pixel = ((image * height + in_h) * width + in_w)[:, None]
        a = tl.load(x + pixel * COLUMNS + column[None, :], mask=inside, other=0.0).to(tl.float32)
        total += a * tl.load(w + tap * W_COLUMNS + column).to(tl.float32)[None, :]
    finish(
        total, bias, residual, y, row, column, 0, rows,
        COLUMNS, 1, HAS_BIAS, HAS_RESIDUAL, ACTIVATION, LOW, HIGH,
    )  # fmt: skip
