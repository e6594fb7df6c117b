"""IntegerArithmetic: convolutions and matmuls of quantised tensors are computed on integers.

A quantised model is imported as dequantize → float op → quantize. Where both operands of a convolution or a
matmul are dequantised and the weights are constant, the op is computed on the integers instead:

    conv(s_x (x - z_x), s_w (w - z_w)) = s_x s_w (conv(x, w - z_w) - z_x sum(w - z_w))

with a 32-bit accumulator; padding is filled with z_x, so that the second term is one constant per output
channel. The epilogue (bias, activation, quantize) stays in float and is fused after the accumulator. Exact up
to the rounding of that float arithmetic, about 1e-7 of the accumulator (Jacob et al., "Quantization and
Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference", 2018, section 2.2).
Needs: parameters bound as constants. Other patterns stay in float arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax

from kiln.graph.bindings import (
    Array,
    CallRewriter,
    const,
    constant,
    integers,
    operator,
    rewrite_calls,
)


@dataclass(frozen=True)
class _Quantised:
    """value = scale * (data - zero_point); `scale` has one entry, or one for each index of `axis`."""

    data: Any
    scale: Array
    zero_point: int
    axis: int


def _dequantised(rewriter: CallRewriter, expr: Any) -> _Quantised | None:
    call = rewriter.definition(expr)
    if operator(call) != "relax.dequantize" or str(call.args[0].ty.dtype) not in ("int8", "uint8"):
        return None
    scale, zero_point = constant(call.args[1]), constant(call.args[2])
    if scale is None or zero_point is None or np.unique(zero_point).size != 1:
        return None
    rank = len(call.args[0].ty.shape)
    return _Quantised(
        call.args[0],
        scale.astype("float64").reshape(-1),
        int(zero_point.reshape(-1)[0]),
        int(call.attrs.axis) % rank,
    )


def _weights(rewriter: CallRewriter, expr: Any, channel_axis: int) -> tuple[Array, Array] | None:
    """Constant weights minus their zero point (int8, or int16 if they do not fit), and their scales.

    One scale for each output channel, or one for all. None for other expressions.
    """
    found = _dequantised(rewriter, expr)
    if found is None:
        return None
    data = rewriter.definition(found.data)
    value = constant(data)
    if value is None and operator(data) == "relax.permute_dims":
        inner = constant(rewriter.definition(data.args[0]))
        if inner is not None:
            axes = None if data.attrs.axes is None else integers(data.attrs.axes)
            value = np.transpose(inner, axes)
    if value is None or (found.scale.size > 1 and found.axis != channel_axis):
        return None
    shifted = value.astype("int32") - found.zero_point
    fits = shifted.min() >= -128 and shifted.max() <= 127
    return shifted.astype("int8" if fits else "int16"), found.scale


def _rescale(rewriter: CallRewriter, total: Any, offset: Array, scale: Array, shape: list[int]) -> Any:
    """scale * (total + offset) as float32; `offset` and `scale` have one entry for each output channel."""
    if np.any(offset):
        total = rewriter.emit(relax.op.add(total, const(offset.reshape(shape), "int32")))
    as_float = rewriter.emit(relax.op.astype(total, "float32"))
    factor = const(scale, "float32") if scale.ndim == 0 else const(scale.reshape(shape), "float32")
    return relax.op.multiply(as_float, factor)


def _conv2d(rewriter: CallRewriter, call: Any) -> Any:
    attrs = call.attrs
    data_layout, kernel_layout = str(attrs.data_layout), str(attrs.kernel_layout)
    if sorted(data_layout) != sorted("NHWC") or sorted(kernel_layout) != sorted("HWIO"):
        return None
    image = _dequantised(rewriter, call.args[0])
    weights = _weights(rewriter, call.args[1], kernel_layout.index("O"))
    if image is None or weights is None or image.scale.size != 1:
        return None
    kernel, scale = weights
    data = image.data
    top, left, bottom, right = integers(attrs.padding)
    if any((top, left, bottom, right)) and image.zero_point != 0:
        amounts = {"H": (top, bottom), "W": (left, right)}
        widths = [amount for axis in data_layout for amount in amounts.get(axis, (0, 0))]
        data = rewriter.emit(relax.op.nn.pad(data, widths, "constant", float(image.zero_point)))
        top = left = bottom = right = 0
    total = rewriter.emit(
        relax.op.nn.conv2d(
            data,
            const(kernel, str(kernel.dtype)),
            strides=integers(attrs.strides),
            padding=[top, left, bottom, right],
            dilation=integers(attrs.dilation),
            groups=int(attrs.groups),
            data_layout=data_layout,
            kernel_layout=kernel_layout,
            out_dtype="int32",
        )
    )
    reduced = tuple(axis for axis, name in enumerate(kernel_layout) if name != "O")
    offset = -image.zero_point * kernel.astype("int64").sum(axis=reduced)
    channels = offset.size
    scales = np.broadcast_to(scale, (channels,)) * image.scale[0]
    shape = [channels if axis == "C" else 1 for axis in data_layout]
    return _rescale(rewriter, total, offset, scales, shape)


def _matmul(rewriter: CallRewriter, call: Any) -> Any:
    if len(call.args[1].ty.shape) != 2:
        return None
    left = _dequantised(rewriter, call.args[0])
    weights = _weights(rewriter, call.args[1], 1)
    if left is None or weights is None or left.scale.size != 1:
        return None
    kernel, scale = weights
    total = rewriter.emit(relax.op.matmul(left.data, const(kernel, str(kernel.dtype)), out_dtype="int32"))
    offset = -left.zero_point * kernel.astype("int64").sum(axis=0)
    scales = np.broadcast_to(scale, offset.shape) * left.scale[0]
    rank = len(call.args[0].ty.shape)
    return _rescale(rewriter, total, offset, scales, [1] * (rank - 1) + [offset.size])


def integer_arithmetic(mod: tvm.IRModule) -> tvm.IRModule:
    """Compute quantised convolutions and matmuls on integers."""
    return rewrite_calls(mod, {"relax.nn.conv2d": _conv2d, "relax.matmul": _matmul})
