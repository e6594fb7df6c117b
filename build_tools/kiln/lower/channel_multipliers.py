"""Depthwise convolutions with several results a channel become plain ones of repeated channels.

A kernel for groups computes the results of a group side by side in a vector, which two or three of them leave
mostly empty. With each channel repeated once for each of its results, all channels of an image are adjacent
in vectors (kernels/cpu/depthwise.py). Requires conv2d of NHWC and HWIO. Guarantees: same results. Applies to
float32, and where the results of a group fill at most a quarter of a vector.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from kiln.extents import shape_of
from kiln.graph.bindings import CallRewriter, rewrite_calls
from kiln.graph.convolutions import conv2d_nhwc

_LEAST_GAIN = 4  # vectors of groups alone over vectors of repeated channels


def channel_multipliers(lanes: int) -> Any:
    """Repeat the channels of depthwise convolutions with multipliers, for vectors of `lanes` float32."""

    def rule(rewriter: CallRewriter, call: relax.Call) -> Any:
        attrs, (data, kernel) = call.attrs, call.args
        if (str(attrs.data_layout), str(attrs.kernel_layout)) != ("NHWC", "HWIO"):
            return None
        groups, dtypes = int(attrs.groups), (str(data.ty.dtype), str(call.ty.dtype))
        batch, height, width, channels = shape_of(data)
        multiplier = shape_of(kernel)[3]
        if (
            not isinstance(channels, int)
            or not isinstance(multiplier, int)
            or dtypes != ("float32", "float32")
        ):
            return None
        times = multiplier // channels
        if groups != channels or groups == 1 or times < 2 or times * _LEAST_GAIN > lanes:
            return None
        expanded = rewriter.emit(relax.op.expand_dims(data, 4))
        shape = relax.ShapeExpr([batch, height, width, channels, times])
        repeated = rewriter.emit(relax.op.broadcast_to(expanded, shape))
        image = rewriter.emit(relax.op.reshape(repeated, relax.ShapeExpr([batch, height, width, multiplier])))
        return conv2d_nhwc(call, image, kernel, groups=multiplier)

    def apply(mod: tvm.IRModule) -> tvm.IRModule:
        return rewrite_calls(mod, {"relax.nn.conv2d": rule})

    return apply
