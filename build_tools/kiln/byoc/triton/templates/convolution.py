"""NHWC convolutions as products of pixels by channels, whose pixels are gathered while they are loaded."""

import triton
import triton.language as tl

from .epilogue import finish, product


@triton.jit
def convolution(
    x, w, bias, residual, y, batch, height, width, out_height, out_width,
    CHANNELS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr, SPLIT: tl.constexpr,
    FILTER_H: tl.constexpr, FILTER_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PAD_H: tl.constexpr, PAD_W: tl.constexpr, DILATE_H: tl.constexpr, DILATE_W: tl.constexpr,
    ROWS: tl.constexpr, EDGES: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    ACTIVATION: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, TF32: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """y (batch, out_height, out_width, COLUMNS) from x (batch, height, width, CHANNELS), with an epilogue.

    w (steps * K, WIDE): filters, with zeros as padding. ROWS: the places of one row of the window are one run
    of FILTER_W * CHANNELS numbers, next to each other in x (DILATE_W is 1), padded to K; otherwise each place
    is a run of CHANNELS. EDGES: windows reach beyond the left or right edge. WIDE is COLUMNS padded to N.
    SPLIT > 1: block z sums a part of the depth into y (SPLIT, pixels, COLUMNS).
    """
    row = tl.program_id(0) * M + tl.arange(0, M)
    column = tl.program_id(1) * N + tl.arange(0, N)
    part = tl.program_id(2)
    rows = batch * out_height * out_width
    image = row // (out_height * out_width)
    top = row // out_width % out_height * STRIDE_H - PAD_H
    left = row % out_width * STRIDE_W - PAD_W
    total = tl.zeros((M, N), tl.float32)
    run: tl.constexpr = FILTER_W * CHANNELS if ROWS else CHANNELS
    blocks: tl.constexpr = (run + K - 1) // K
    steps: tl.constexpr = FILTER_H * blocks if ROWS else FILTER_H * FILTER_W * blocks
    each: tl.constexpr = (steps + SPLIT - 1) // SPLIT
    for step in tl.range(part * each, tl.minimum(part * each + each, steps)):
        place = step // blocks
        at = step % blocks * K + tl.arange(0, K)
        if ROWS:
            h, v = top + place * DILATE_H, left
            inside = ((row < rows) & (h >= 0) & (h < height))[:, None]
            if EDGES:
                across = v[:, None] + (at // CHANNELS)[None, :]
                inside = inside & (across >= 0) & (across < width)
        else:
            h, v = top + place // FILTER_W * DILATE_H, left + place % FILTER_W * DILATE_W
            inside = ((row < rows) & (h >= 0) & (h < height) & (v >= 0) & (v < width))[:, None]
        if run % K != 0:
            inside = inside & (at < run)[None, :]
        pixel = ((image * height + h) * width + v)[:, None]
        a = tl.load(x + pixel * CHANNELS + at[None, :], mask=inside, other=0.0)
        k = step * K + tl.arange(0, K)
        total = product(a, tl.load(w + k[:, None] * WIDE + column[None, :]), total, TF32)
    finish(
        total, bias, residual, y, row, column, part, rows,
        COLUMNS, SPLIT, HAS_BIAS, HAS_RESIDUAL, ACTIVATION, LOW, HIGH,
    )  # fmt: skip
