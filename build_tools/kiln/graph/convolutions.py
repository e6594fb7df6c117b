"""Convolutions: convert conv1d, conv3d, and conv2d with other kernel layouts, to conv2d of NHWC and HWIO.

A 1-D convolution is a 2-D convolution of images with a single line: data (N, C, W) or (N, W, C) becomes
(N, 1, W, C), and kernels become (1, K, I, O). Moving the channels is a transpose, which graph/layout.py moves
to where it vanishes; the axis of size 1 costs nothing. Kernels in another order, such as TFLite's depthwise
kernels, become HWIO. Guarantees: same results. Does not change convolutions with kernels that are computed
at run time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

from kiln.extents import shape_of
from kiln.graph import pools
from kiln.graph.bindings import CallRewriter, const, constant, integers, rewrite_calls
from kiln.graph.conv3d import plain_conv3d

# Layout → the permutation of axes that makes it NWC, or WIO; None: none is needed.
_DATA = {"NCW": [0, 2, 1], "NWC": None}
_KERNELS = {"OIW": (2, 1, 0), "WIO": (0, 1, 2)}


def conv2d_nhwc(call: relax.Call, data: Any, kernel: Any, groups: int | None = None) -> Any:
    """The conv2d `call` on `data` of shape (N, H, W, C) and `kernel` of shape (H, W, I, O).

    `groups`: in place of those of `call`.
    """
    attrs = call.attrs
    return relax.op.nn.conv2d(
        data,
        kernel,
        strides=integers(attrs.strides),
        padding=integers(attrs.padding),
        dilation=integers(attrs.dilation),
        groups=int(attrs.groups) if groups is None else groups,
        data_layout="NHWC",
        kernel_layout="HWIO",
        out_dtype=str(call.ty.dtype),
    )


def in_one_line(attrs: Any) -> dict[str, Any]:
    """The attributes of a 1-D convolution, of NHWC data and HWIO kernels, for images of one line."""
    left, right = integers(attrs.padding)
    return {
        "strides": [1, *integers(attrs.strides)],
        "padding": [0, left, 0, right],
        "dilation": [1, *integers(attrs.dilation)],
        "groups": int(attrs.groups),
        "data_layout": "NHWC",
        "kernel_layout": "HWIO",
    }


def _conv1d(rewriter: CallRewriter, call: relax.Call) -> Any:
    attrs = call.attrs
    layout, weights = str(attrs.data_layout), constant(call.args[1])
    if layout not in _DATA or str(attrs.kernel_layout) not in _KERNELS or weights is None:
        return None
    if str(attrs.out_layout) != layout:
        return None
    kernel = np.transpose(weights, _KERNELS[str(attrs.kernel_layout)])[None]
    moved, data = _DATA[layout], call.args[0]
    if moved is not None:
        data = rewriter.emit(relax.op.permute_dims(data, moved))
    batch, width, channels = shape_of(data)
    lines = rewriter.emit(
        relax.op.nn.conv2d(
            rewriter.emit(relax.op.reshape(data, [batch, 1, width, channels])),
            const(kernel, str(weights.dtype)),
            **in_one_line(attrs),
            out_dtype=str(call.ty.dtype),
        )
    )
    batch, _, width, channels = shape_of(lines)
    result = relax.op.reshape(lines, [batch, width, channels])
    return result if moved is None else relax.op.permute_dims(rewriter.emit(result), moved)


def _conv2d(_rewriter: CallRewriter, call: relax.Call) -> Any:
    attrs, weights = call.attrs, constant(call.args[1])
    layout = str(attrs.kernel_layout)
    if str(attrs.data_layout) != "NHWC" or layout == "HWIO" or len(layout) != 4 or weights is None:
        return None
    kernel = np.transpose(weights, [layout.index(axis) for axis in "HWIO"])
    return conv2d_nhwc(call, call.args[0], const(kernel, str(weights.dtype)))


def plain_convolutions(mod: tvm.IRModule) -> tvm.IRModule:
    """Convert convolutions with constant kernels to conv2d of NHWC and HWIO, and pools along one axis."""
    rules: dict[str, Any] = {
        **pools.RULES,
        "relax.nn.conv1d": _conv1d,
        "relax.nn.conv2d": _conv2d,
        "relax.nn.conv3d": plain_conv3d,
    }
    return rewrite_calls(mod, rules)
