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
    FLAT: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    ACTIVATION: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, TF32: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """y (batch, out_height, out_width, COLUMNS) from x (batch, height, width, CHANNELS), with an epilogue.

    w (steps * K, WIDE): filters with zeros as padding. FLAT: the depth is (FILTER_H, FILTER_W, CHANNELS) in
    one, padded to K at its end; otherwise CHANNELS is padded to K at each place of the window. WIDE is
    COLUMNS padded to N. SPLIT > 1: block z sums a part of the depth into y (SPLIT, pixels, COLUMNS).
    """
    row = tl.program_id(0) * M + tl.arange(0, M)
    column = tl.program_id(1) * N + tl.arange(0, N)
    part = tl.program_id(2)
    rows = batch * out_height * out_width
    image = row // (out_height * out_width)
    top = row // out_width % out_height * STRIDE_H - PAD_H
    left = row % out_width * STRIDE_W - PAD_W
    total = tl.zeros((M, N), tl.float32)
    blocks: tl.constexpr = (CHANNELS + K - 1) // K
    depth: tl.constexpr = FILTER_H * FILTER_W * CHANNELS
    steps: tl.constexpr = (depth + K - 1) // K if FLAT else FILTER_H * FILTER_W * blocks
    each: tl.constexpr = (steps + SPLIT - 1) // SPLIT
    for step in tl.range(part * each, tl.minimum(part * each + each, steps)):
        k = step * K + tl.arange(0, K)
        if FLAT:
            place, channel = k // CHANNELS, k % CHANNELS
            h = top[:, None] + (place // FILTER_W * DILATE_H)[None, :]
            v = left[:, None] + (place % FILTER_W * DILATE_W)[None, :]
            inside = (h >= 0) & (h < height) & (v >= 0) & (v < width)
            inside = inside & (row < rows)[:, None] & (k < depth)[None, :]
            pixel = (image[:, None] * height + h) * width + v
        else:
            place = step // blocks
            channel = step % blocks * K + tl.arange(0, K)
            h = top + place // FILTER_W * DILATE_H
            v = left + place % FILTER_W * DILATE_W
            inside = ((row < rows) & (h >= 0) & (h < height) & (v >= 0) & (v < width))[:, None]
            if CHANNELS % K != 0:
                inside = inside & (channel < CHANNELS)[None, :]
            pixel = ((image * height + h) * width + v)[:, None]
        a = tl.load(x + pixel * CHANNELS + channel[None, :], mask=inside, other=0.0)
        total = product(a, tl.load(w + k[:, None] * WIDE + column[None, :]), total, TF32)
    finish(
        total, bias, residual, y, row, column, part, rows,
        COLUMNS, SPLIT, HAS_BIAS, HAS_RESIDUAL, ACTIVATION, LOW, HIGH,
    )  # fmt: skip
