"""Transposed convolution as a convolution: one small kernel for each phase of the stride.

With stride s, output o + p = q s + r depends on inputs q, q - 1, … through taps r, r + s, … of the kernel.
All s x s phases (r_h, r_w) have the same inputs, so one convolution with s * s times as many channels
computes them together, and a transpose interleaves them (Shi et al., "Is the deconvolution layer the same as
a convolutional layer?", 2016). No multiplications by inserted zeros are left, but for those between the taps
of a dilated kernel along an axis with a stride. A 1-D convolution is one of images with a single line.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, sym

from kiln.config.sizes import ceil_div
from kiln.graph.bindings import Array, CallRewriter, as_size, const, constant, integers, shape_of


def _dilated(weights: Array, dilation: list[int]) -> Array:
    """Weights (I, O, KH, KW) with zeros between the taps."""
    for axis, distance in zip((2, 3), dilation, strict=True):
        shape = list(weights.shape)
        shape[axis] = (shape[axis] - 1) * distance + 1
        wider = np.zeros(shape, weights.dtype)
        wider[(slice(None),) * axis + (slice(None, None, distance),)] = weights
        weights = wider
    return weights


def _phases(weights: Array, strides: list[int], groups: int) -> tuple[Array, list[int]]:
    """Weights (I, O, KH, KW) as a kernel (JH, JW, I / groups, groups s_h s_w O) of all phases, and [JH, JW].

    O: channels of a group's result; J = ceil(K / s). The taps are reversed.
    """
    channels_in, channels_out, *kernel = weights.shape
    taps = [ceil_div(size, stride) for size, stride in zip(kernel, strides, strict=True)]
    padding = [(0, taps[i] * strides[i] - kernel[i]) for i in range(2)]
    full = np.pad(weights, [(0, 0), (0, 0), *padding])
    own = channels_in // groups
    split = full.reshape(groups, own, channels_out, taps[0], strides[0], taps[1], strides[1])
    ordered = split.transpose(3, 5, 1, 0, 4, 6, 2)[::-1, ::-1]
    return ordered.reshape(taps[0], taps[1], own, -1), taps


def _known(size: Any) -> Any:
    return size if isinstance(size, int) else as_size(sym.Analyzer().simplify(size))


def conv2d_transpose(rewriter: CallRewriter, call: Any) -> Any:
    """Rewrite one nn.conv2d_transpose of layout NCHW with constant weights; None for others."""
    attrs, weights = call.attrs, constant(call.args[1])
    if str(attrs.data_layout) != "NCHW" or str(attrs.kernel_layout) != "IOHW" or weights is None:
        return None
    data = rewriter.emit(relax.op.permute_dims(call.args[0], [0, 2, 3, 1]))
    padding = integers(attrs.padding)[:2]
    steps = integers(attrs.strides), integers(attrs.dilation)
    result = _interleaved(rewriter, call, data, weights, steps, padding, shape_of(call)[2:])
    return None if result is None else relax.op.permute_dims(result, [0, 3, 1, 2])


def conv1d_transpose(rewriter: CallRewriter, call: Any) -> Any:
    """Rewrite one nn.conv1d_transpose of layout NCW with constant weights; None for others."""
    attrs, weights = call.attrs, constant(call.args[1])
    if str(attrs.data_layout) != "NCW" or str(attrs.kernel_layout) != "IOW" or weights is None:
        return None
    batch, channels, width = shape_of(call.args[0])
    moved = rewriter.emit(relax.op.permute_dims(call.args[0], [0, 2, 1]))
    data = rewriter.emit(relax.op.reshape(moved, [batch, 1, width, channels]))
    steps = [1, *integers(attrs.strides)], [1, *integers(attrs.dilation)]
    padding, (_, channels, width) = [0, integers(attrs.padding)[0]], shape_of(call)
    result = _interleaved(rewriter, call, data, weights[:, :, None], steps, padding, [1, width])
    if result is None:
        return None
    line = rewriter.emit(relax.op.reshape(result, [batch, width, channels]))
    return relax.op.permute_dims(line, [0, 2, 1])


def _interleaved(
    rewriter: CallRewriter, call: Any, data: Any, weights: Array, steps: tuple[list[int], list[int]],
    padding: list[int], out: list[Any],
) -> Any:  # fmt: skip
    """The result (N, *out, O) of `call` on data (N, H, W, I) with weights (I, O / groups, KH, KW).

    `steps`: strides and dilation. `padding`: before the first row and column. None where zeros after the
    result depend on a dynamic size.
    """
    groups = int(call.attrs.groups)
    strides, dilation = steps
    # Without a stride, the convolution itself is dilated.
    own = [distance if stride == 1 else 1 for stride, distance in zip(strides, dilation, strict=True)]
    rest = [distance // one for distance, one in zip(dilation, own, strict=True)]
    kernel, taps = _phases(_dilated(weights, rest), strides, groups)
    channels = int(weights.shape[1])
    edge = [(count - 1) * distance for count, distance in zip(taps, own, strict=True)]
    batch, height, width, _ = shape_of(data)
    lines, columns = height + edge[0], width + edge[1]
    # Rows and columns after the phases (output_padding) depend on no input: they are zero.
    size = [batch, lines * strides[0], columns * strides[1], groups * channels]
    need = [padding[0] + out[0], padding[1] + out[1]]
    gaps = [_known(wanted - made) for wanted, made in zip(need, size[1:3], strict=True)]
    if not all(isinstance(gap, int) for gap in gaps):
        return None
    phases = rewriter.emit(
        relax.op.nn.conv2d(
            data,
            const(kernel, str(weights.dtype)),
            padding=[*edge, *edge],
            dilation=own,
            groups=groups,
            data_layout="NHWC",
            kernel_layout="HWIO",
        )
    )
    split = rewriter.emit(
        relax.op.reshape(phases, [batch, lines, columns, groups, strides[0], strides[1], channels])
    )
    interleaved = rewriter.emit(relax.op.permute_dims(split, [0, 1, 4, 2, 5, 3, 6]))
    result = rewriter.emit(relax.op.reshape(interleaved, size))
    more = [max(0, gap) for gap in gaps]
    if any(more):
        result = rewriter.emit(relax.op.nn.pad(result, [0, 0, 0, more[0], 0, more[1], 0, 0], "constant", 0.0))
    if padding != [0, 0] or gaps != more:
        result = rewriter.emit(
            relax.op.strided_slice(
                result, axes=[1, 2], begin=padding, end=need, strides=[1, 1], assume_inbound=True
            )
        )
    return result
