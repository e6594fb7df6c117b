"""Windows of NHWC convolutions: where that of an output pixel begins, and runs of numbers in it."""

import triton
import triton.language as tl


@triton.jit
def corners(
    row, out_height, out_width,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
):  # fmt: skip
    """Image, and row and column of the first place of the window, of the output pixels numbered `row`."""
    image = row // (out_height * out_width)
    top = row // out_width % out_height * STRIDE_H - PAD_H
    left = row % out_width * STRIDE_W - PAD_W
    return image, top, left


@triton.jit
def gathered(
    x, is_pixel, image, top, left, step, height, width,
    CHANNELS: tl.constexpr, RUN: tl.constexpr, FILTER_W: tl.constexpr, DILATE_H: tl.constexpr,
    DILATE_W: tl.constexpr, ROWS: tl.constexpr, EDGES: tl.constexpr, OUTSIDE: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Numbers (pixels, K) of x (batch, height, width, CHANNELS) that step number `step` multiplies.

    ROWS: a row of the window is one run of RUN numbers, next to each other in x, padded to K; otherwise each
    place is a run of CHANNELS. EDGES: windows reach beyond the left or right edge. OUTSIDE: the number there.
    """
    blocks: tl.constexpr = (RUN + K - 1) // K
    place = step // blocks
    at = step % blocks * K + tl.arange(0, K)
    if ROWS:
        h, v = top + place * DILATE_H, left
        inside = (is_pixel & (h >= 0) & (h < height))[:, None]
        if EDGES:
            across = v[:, None] + (at // CHANNELS)[None, :]
            inside = inside & (across >= 0) & (across < width)
    else:
        h, v = top + place // FILTER_W * DILATE_H, left + place % FILTER_W * DILATE_W
        inside = (is_pixel & (h >= 0) & (h < height) & (v >= 0) & (v < width))[:, None]
    if RUN % K != 0:
        inside = inside & (at < RUN)[None, :]
    pixel = ((image * height + h) * width + v)[:, None]
    return tl.load(x + pixel * CHANNELS + at[None, :], mask=inside, other=OUTSIDE)
