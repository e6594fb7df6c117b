"""Transposed convolution as a convolution: one small kernel for each phase of the stride.

With stride s, output o + p = q s + r depends on inputs q, q - 1, … through taps r, r + s, … of the kernel.
All s x s phases (r_h, r_w) have the same inputs, so one convolution with s * s times as many channels
computes them together, and a transpose interleaves them (Shi et al., "Is the deconvolution layer the same as
a convolutional layer?", 2016). No multiplications by inserted zeros are left.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, sym

from kiln.config.sizes import ceil_div
from kiln.graph.bindings import Array, CallRewriter, as_size, const, constant, integers, shape_of


def _phases(weights: Array, strides: list[int]) -> tuple[Array, list[int]]:
    """Weights (I, O, KH, KW) as a kernel (JH, JW, I, s_h s_w O) of all phases, taps reversed, and [JH, JW].

    J = ceil(K / s).
    """
    channels_in, channels_out, *kernel = weights.shape
    taps = [ceil_div(size, stride) for size, stride in zip(kernel, strides, strict=True)]
    padding = [(0, taps[i] * strides[i] - kernel[i]) for i in range(2)]
    full = np.pad(weights, [(0, 0), (0, 0), *padding])
    split = full.reshape(channels_in, channels_out, taps[0], strides[0], taps[1], strides[1])
    ordered = split.transpose(2, 4, 0, 3, 5, 1)[::-1, ::-1]
    return ordered.reshape(taps[0], taps[1], channels_in, -1), taps


def _known(size: Any) -> Any:
    return size if isinstance(size, int) else as_size(sym.Analyzer().simplify(size))


def conv2d_transpose(rewriter: CallRewriter, call: Any) -> Any:
    """Rewrite one nn.conv2d_transpose of layout NCHW with constant weights; None for groups or dilation."""
    attrs = call.attrs
    weights = constant(call.args[1])
    plain = int(attrs.groups) == 1 and integers(attrs.dilation) == [1, 1]
    if str(attrs.data_layout) != "NCHW" or str(attrs.kernel_layout) != "IOHW" or weights is None or not plain:
        return None
    strides, padding = integers(attrs.strides), integers(attrs.padding)
    kernel, taps = _phases(weights, strides)
    _, channels, out_h, out_w = shape_of(call)
    batch, _, height, width = shape_of(call.args[0])
    lines, columns = height + taps[0] - 1, width + taps[1] - 1
    data = rewriter.emit(relax.op.permute_dims(call.args[0], [0, 2, 3, 1]))
    edge = [taps[0] - 1, taps[1] - 1]
    phases = rewriter.emit(
        relax.op.nn.conv2d(
            data,
            const(kernel, str(weights.dtype)),
            padding=[*edge, *edge],
            data_layout="NHWC",
            kernel_layout="HWIO",
        )
    )
    split = rewriter.emit(relax.op.reshape(phases, [batch, lines, columns, strides[0], strides[1], channels]))
    interleaved = rewriter.emit(relax.op.permute_dims(split, [0, 1, 3, 2, 4, 5]))
    size = [batch, lines * strides[0], columns * strides[1], channels]
    result = rewriter.emit(relax.op.reshape(interleaved, size))
    # Rows and columns after the phases (output_padding) depend on no input: they are zero.
    need = [padding[0] + out_h, padding[1] + out_w]
    gaps = [_known(wanted - made) for wanted, made in zip(need, size[1:3], strict=True)]
    if not all(isinstance(gap, int) for gap in gaps):  # a gap depends on a dynamic size
        return None
    more = [max(0, gap) for gap in gaps]
    if any(more):
        result = rewriter.emit(relax.op.nn.pad(result, [0, 0, 0, more[0], 0, more[1], 0, 0], "constant", 0.0))
    if [padding[0], padding[1]] != [0, 0] or gaps != more:
        result = rewriter.emit(
            relax.op.strided_slice(
                result, axes=[1, 2], begin=[padding[0], padding[1]], end=need, strides=[1, 1]
            )
        )
    return relax.op.permute_dims(result, [0, 3, 1, 2])
