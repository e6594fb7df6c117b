"""3-D convolutions as 2-D ones, for which there are kernels.

The taps of a kernel along the depth become channels: each output image is a 2-D convolution of the input
images that its taps read, with their channels one after the other (im2col along the depth alone). With one
channel a group
the 2-D convolutions of the taps are added up instead. A kernel of 1 x 1 pixels is one of D x 1 on images of D
lines of H W pixels, without a copy. Guarantees: same results, but for the order of sums. Does not change
convolutions with kernels that are computed at run time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import relax

from kiln.extents import shape_of
from kiln.graph.bindings import Array, CallRewriter, const, constant, integers

# Layout → the permutation of axes that makes it NDHWC, or DHWIO; None: none is needed.
_DATA = {"NCDHW": [0, 2, 3, 4, 1], "NDHWC": None}
_BACK = [0, 4, 1, 2, 3]  # from NDHWC to NCDHW
_KERNELS = {"OIDHW": (2, 3, 4, 1, 0), "DHWIO": (0, 1, 2, 3, 4)}


@dataclass(frozen=True)
class Window:
    """How the kernel of a convolution moves, along depth (of 3-D ones), height and width.

    `padding`: before the first element of each axis, then after the last of each. `dtype`: of the result.
    """

    strides: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int
    dtype: str


def conv2d(rewriter: CallRewriter, data: Any, kernel: Array, window: Window) -> Any:
    """The result (N, H', W', O) on data (N, H, W, I) with a kernel (KH, KW, I / groups, O)."""
    return rewriter.emit(
        relax.op.nn.conv2d(
            data,
            const(np.ascontiguousarray(kernel), str(kernel.dtype)),
            strides=window.strides,
            padding=window.padding,
            dilation=window.dilation,
            groups=window.groups,
            data_layout="NHWC",
            kernel_layout="HWIO",
            out_dtype=window.dtype,
        )
    )


def conv3d(rewriter: CallRewriter, data: Any, kernel: Array, window: Window) -> Any:
    """The result (N, D', H', W', O) on data (N, D, H, W, I) with a kernel (KD, KH, KW, I / groups, O)."""
    batch, depth, height, width, channels = shape_of(data)
    taps, *sizes, depth_multiplier, _ = kernel.shape
    stride, distance = window.strides[0], window.dilation[0]
    front, back = window.padding[0], window.padding[3]
    flat = window.padding[1:3] + window.padding[4:] == [0] * 4 and window.strides[1:] == sizes == [1, 1]
    if flat:  # one image of D lines
        lines = rewriter.emit(relax.op.reshape(data, [batch, depth, height * width, channels]))
        along = replace(window, strides=[stride, 1], padding=[front, 0, back, 0], dilation=[distance, 1])
        planes = conv2d(rewriter, lines, kernel[:, :, 0], along)
        _, depth, _, channels_out = shape_of(planes)
        return rewriter.emit(relax.op.reshape(planes, [batch, depth, height, width, channels_out]))
    if front or back:
        data = rewriter.emit(relax.op.nn.pad(data, [0, 0, front, back, *[0] * 6], "constant", 0.0))
    depth = (depth + front + back - (taps - 1) * distance - 1) // stride + 1
    tap_data = [data] if taps == stride == 1 else [
        rewriter.emit(
            relax.op.strided_slice(
                data, axes=[1], begin=[tap * distance], end=[tap * distance + (depth - 1) * stride + 1],
                strides=[stride], assume_inbound=True,
            )
        )
        for tap in range(taps)
    ]  # fmt: skip
    plane = replace(
        window,
        strides=window.strides[1:],
        padding=window.padding[1:3] + window.padding[4:],
        dilation=window.dilation[1:],
    )
    if depth_multiplier == 1 and window.groups > 1:
        size = [batch * depth, height, width, channels]
        images = [rewriter.emit(relax.op.reshape(tensor, size)) for tensor in tap_data]
        planes = conv2d(rewriter, images[0], kernel[0], plane)
        for image, tap in zip(images[1:], kernel[1:], strict=True):
            planes = rewriter.emit(relax.op.add(conv2d(rewriter, image, tap, plane), planes))
    else:
        if taps > 1:
            grouped = [batch, depth, height, width, window.groups, depth_multiplier]
            tap_data = [rewriter.emit(relax.op.reshape(tensor, grouped)) for tensor in tap_data]
            tap_data = [rewriter.emit(relax.op.concat(tap_data, axis=5))]
        image = rewriter.emit(relax.op.reshape(tap_data[0], [batch * depth, height, width, taps * channels]))
        joined = kernel.transpose(1, 2, 0, 3, 4).reshape(*sizes, taps * depth_multiplier, -1)
        planes = conv2d(rewriter, image, joined, plane)
    _, height, width, channels_out = shape_of(planes)
    return rewriter.emit(relax.op.reshape(planes, [batch, depth, height, width, channels_out]))


def plain_conv3d(rewriter: CallRewriter, call: relax.Call) -> Any:
    """Rewrite one nn.conv3d with a constant kernel; None for others."""
    attrs, weights = call.attrs, constant(call.args[1])
    layout = str(attrs.data_layout)
    if layout not in _DATA or str(attrs.kernel_layout) not in _KERNELS or weights is None:
        return None
    if str(attrs.out_layout) != layout:
        return None
    moved, data = _DATA[layout], call.args[0]
    if moved is not None:
        data = rewriter.emit(relax.op.permute_dims(data, moved))
    window = Window(
        integers(attrs.strides),
        integers(attrs.padding),
        integers(attrs.dilation),
        int(attrs.groups),
        str(call.ty.dtype),
    )
    result = conv3d(rewriter, data, np.transpose(weights, _KERNELS[str(attrs.kernel_layout)]), window)
    return result if moved is None else relax.op.permute_dims(result, _BACK)
