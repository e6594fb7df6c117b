"""Windows of NHWC convolutions: the input coordinates of an output pixel's window, and loads from it."""

import triton
import triton.language as tl


@triton.jit
def corners(
    row, out_height, out_width,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
):  # fmt: skip
    """Batch index of the output pixels `row`, and the input row and column where their windows begin.

    Row and column are negative where the window begins in the padding.
    """
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
    """The elements (pixels, K) of x (batch, height, width, CHANNELS) that step `step` of the sum multiplies.

    ROWS: a row of the window is one run of RUN contiguous elements of x, padded to K; otherwise each tap of
    the window is a run of CHANNELS elements. EDGES: windows reach beyond the left or right edge of the image.
    OUTSIDE: value of the elements outside of the image.
    """
    steps_of_run: tl.constexpr = (RUN + K - 1) // K
    run = step // steps_of_run
    offset = step % steps_of_run * K + tl.arange(0, K)
    if ROWS:
        in_h, in_w = top + run * DILATE_H, left
        inside = (is_pixel & (in_h >= 0) & (in_h < height))[:, None]
        if EDGES:
            columns = in_w[:, None] + (offset // CHANNELS)[None, :]
            inside = inside & (columns >= 0) & (columns < width)
    else:
        in_h, in_w = top + run // FILTER_W * DILATE_H, left + run % FILTER_W * DILATE_W
        inside = (is_pixel & (in_h >= 0) & (in_h < height) & (in_w >= 0) & (in_w < width))[:, None]
    if RUN % K != 0:
        inside = inside & (offset < RUN)[None, :]
    pixel = ((image * height + in_h) * width + in_w)[:, None]
    return tl.load(x + pixel * CHANNELS + offset[None, :], mask=inside, other=OUTSIDE)
