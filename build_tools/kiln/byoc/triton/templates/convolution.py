"""NHWC convolutions as products of pixels by channels, whose pixels are gathered while they are loaded."""

import triton
import triton.language as tl

from .epilogue import finish, product
from .window import corners, gathered


@triton.jit
def convolution(
    x, w, bias, residual, y, batch, height, width, out_height, out_width,
    CHANNELS: tl.constexpr, COLUMNS: tl.constexpr, W_COLUMNS: tl.constexpr, SPLIT: tl.constexpr,
    FILTER_H: tl.constexpr, FILTER_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PAD_H: tl.constexpr, PAD_W: tl.constexpr, DILATE_H: tl.constexpr, DILATE_W: tl.constexpr,
    ROWS: tl.constexpr, EDGES: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    ACTIVATION: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, TF32: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """y (batch, out_height, out_width, COLUMNS) from x (batch, height, width, CHANNELS), with an epilogue.

    w (steps * K, W_COLUMNS): filters, with zeros as padding; W_COLUMNS is COLUMNS padded to N. ROWS: a row
    of the window is one run of FILTER_W * CHANNELS numbers (DILATE_W is 1); see window.py, also for EDGES.
    SPLIT > 1: block z sums a part of the depth into y (SPLIT, pixels, COLUMNS).
    """
    row = tl.program_id(0) * M + tl.arange(0, M)
    column = tl.program_id(1) * N + tl.arange(0, N)
    part = tl.program_id(2)
    rows = batch * out_height * out_width
    image, top, left = corners(row, out_height, out_width, STRIDE_H, STRIDE_W, PAD_H, PAD_W)
    total = tl.zeros((M, N), tl.float32)
    run: tl.constexpr = FILTER_W * CHANNELS if ROWS else CHANNELS
    runs: tl.constexpr = FILTER_H if ROWS else FILTER_H * FILTER_W
    steps: tl.constexpr = runs * ((run + K - 1) // K)
    steps_of_part: tl.constexpr = (steps + SPLIT - 1) // SPLIT
    for step in tl.range(part * steps_of_part, tl.minimum(part * steps_of_part + steps_of_part, steps)):
        a = gathered(
            x, row < rows, image, top, left, step, height, width,
            CHANNELS, run, FILTER_W, DILATE_H, DILATE_W, ROWS, EDGES, 0.0, K,
        )  # fmt: skip
        k = step * K + tl.arange(0, K)
        total = product(a, tl.load(w + k[:, None] * W_COLUMNS + column[None, :]), total, TF32)
    finish(
        total, bias, residual, y, row, column, part, rows,
        COLUMNS, SPLIT, HAS_BIAS, HAS_RESIDUAL, ACTIVATION, LOW, HIGH,
    )  # fmt: skip
