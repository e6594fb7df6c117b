"""DeadTaps: convolutions lose the rows and columns of their kernels that read nothing but padding.

A kernel with a dilation of 36, as in DeepLab's pyramid, reads padding on all sides of a small image, and so
does the rim of a 7x7 kernel on an image of 2x2 pixels. Where the image has a dynamic size, what counts is the
greatest: a tap that reads an element of a smaller image reads one of that image, too. Guarantees: same
results, as zeros are added. Does not change integers, kernels that are computed at run time, and kernels that
are not finite.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import relax

from kiln.extents import shape_of
from kiln.graph.bindings import CallRewriter, const, constant, integers, rewrite_calls
from kiln.graph.greatest_size import greatest_size

Range = tuple[int, int]


def _kept(size: int, out: int, taps: int, stride: int, dilation: int, pads: Range) -> Range:
    """The taps that read an element of an axis of `size`; all of them where padding would become negative.

    `out`: the size of the result. `pads`: the padding before and after the axis.
    """

    def reads(tap: int) -> bool:
        start = tap * dilation - pads[0]  # of the first position
        first = max(0, -(start // stride))  # the first position that does not lie before the axis
        return first < out and first * stride + start < size

    alive = [tap for tap in range(taps) if reads(tap)]
    if not alive:
        return 0, taps
    low, high = alive[0], alive[-1] + 1
    left, right = pads[0] - low * dilation, pads[1] - (taps - high) * dilation
    return (low, high) if left >= 0 and right >= 0 else (0, taps)


def _conv2d(greatest: Callable[[Any], int], _rewriter: CallRewriter, call: relax.Call) -> Any:
    attrs, weights = call.attrs, constant(call.args[1])
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
    if weights is None or layouts != ("NHWC", "HWIO", "NHWC") or not weights.dtype.name.startswith("float"):
        return None
    padding, strides, dilation = integers(attrs.padding), integers(attrs.strides), integers(attrs.dilation)
    ranges = []
    for axis in (0, 1):
        size, out = (greatest(shape_of(tensor)[axis + 1]) for tensor in (call.args[0], call))
        pads = padding[axis], padding[axis + 2]
        ranges.append(_kept(size, out, weights.shape[axis], strides[axis], dilation[axis], pads))
    (top, bottom), (left, right) = ranges
    kernel = weights[top:bottom, left:right]
    if kernel.shape == weights.shape or not np.isfinite(weights).all():
        return None
    for axis, (low, high) in enumerate(ranges):
        padding[axis] -= low * dilation[axis]
        padding[axis + 2] -= (weights.shape[axis] - high) * dilation[axis]
    return relax.op.nn.conv2d(
        call.args[0],
        const(kernel, str(weights.dtype)),
        strides=strides,
        padding=padding,
        dilation=dilation,
        groups=int(attrs.groups),
        data_layout="NHWC",
        kernel_layout="HWIO",
        out_dtype=str(call.ty.dtype),
    )


def dead_taps(mod: tvm.IRModule) -> tvm.IRModule:
    """Remove the rows and columns of conv2d kernels (NHWC, HWIO) that only ever meet padding."""
    return rewrite_calls(mod, {"relax.nn.conv2d": partial(_conv2d, greatest_size(mod))})
