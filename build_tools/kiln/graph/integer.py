"""IntegerArithmetic: convolutions and matmuls of quantised tensors are computed on integers.

A quantised model is imported as dequantize → float op → quantize. Where both operands of a convolution or a
matmul are dequantised and the weights are constant, the op is computed on the integers instead:

    conv(s_x (x - z_x), s_w (w - z_w)) = s_x s_w (conv(x, w - z_w) - z_x sum(w - z_w))

with a 32-bit accumulator; padding is filled with z_x, so that the second term is one constant per output
channel. Weights of uint8 are stored as w - 128 in int8; the rest of their zero point, one or one for each
output channel, is multiplied with the sum of each window or row of x. The epilogue (bias, activation,
quantize) stays in float and is fused after the accumulator. Exact up to the rounding of that arithmetic,
about 1e-7 of the accumulator (Jacob et al., "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference", 2018, section 2.2).
Needs: parameters bound as constants. Other patterns stay in float arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    count_uses,
    integers,
    operator,
    rewrite_calls,
    shape_of,
)
from kiln.graph.convolutions import in_one_line
from kiln.graph.integer_sums import greatest_size, integer_sums
from kiln.graph.integer_transposed import TransposedConvolutions


@dataclass(frozen=True)
class _Quantised:
    """value = scale * (data - zero_point); `scale` has one entry, or one for each index of `axis`.

    `zero_points`: of weights, in the same way; `zero_point` is the first.
    """

    data: Any
    scale: Array
    zero_points: Array
    axis: int

    @property
    def zero_point(self) -> int:
        return int(self.zero_points[0])


def _dequantised(rewriter: CallRewriter, expr: Any, several: bool = False) -> _Quantised | None:
    """The 8-bit tensor that `expr` dequantises; None for others, and unless `several` for zero points."""
    call = rewriter.definition(expr)
    if operator(call) != "relax.dequantize" or str(call.args[0].ty.dtype) not in ("int8", "uint8"):
        return None
    scale, zero = constant(call.args[1]), constant(call.args[2])
    if scale is None or zero is None:
        return None
    points = zero.astype("int32").reshape(-1)
    points = points[:1] if np.all(points == points[:1]) else points
    if points.size != 1 and not several:
        return None
    rank = len(call.args[0].ty.shape)
    return _Quantised(call.args[0], scale.astype("float64").reshape(-1), points, int(call.attrs.axis) % rank)


@dataclass(frozen=True)
class _Weights:
    """Constant weights: scale * (value - rest), value of int8; one scale per output channel, or one for all.

    `rest`, as many numbers, is 0 unless the weights minus their zero points do not fit into int8.
    """

    value: Array
    scale: Array
    rest: Array


def _weights(rewriter: CallRewriter, expr: Any, channel_axis: int) -> _Weights | None:
    """The constant 8-bit weights that `expr` dequantises, also transposed or reshaped; None for others."""
    turned = rewriter.definition(expr)
    axes: list[int] | None = None
    shape: list[int] | None = None
    if operator(turned) == "relax.permute_dims":
        rank = len(turned.ty.shape)
        axes = [*reversed(range(rank))] if turned.attrs.axes is None else integers(turned.attrs.axes)
        expr = turned.args[0]
    elif operator(turned) == "relax.reshape":  # TFLite's depthwise weights: 1HWO as HWOI
        sizes = shape_of(turned)
        if not all(isinstance(size, int) for size in sizes):  # no constant has dynamic sizes
            return None
        shape, expr = sizes, turned.args[0]
    dequantised = _dequantised(rewriter, expr, several=True)
    if dequantised is None:
        return None
    data = rewriter.definition(dequantised.data)
    value = constant(data)
    if value is None and operator(data) == "relax.permute_dims":
        inner = constant(rewriter.definition(data.args[0]))
        if inner is not None:
            value = np.transpose(inner, None if data.attrs.axes is None else integers(data.attrs.axes))
    if value is None:
        return None
    axis: int | None = dequantised.axis if axes is None else axes.index(dequantised.axis)
    if shape is not None:
        axis = _axis_after(value.shape, dequantised.axis, shape)
        value = value.reshape(shape)
    points = dequantised.zero_points
    if max(dequantised.scale.size, points.size) > 1 and axis != channel_axis:
        return None
    value = value.astype("int32") if axes is None else np.transpose(value, axes).astype("int32")
    shifted = value - _along(points, channel_axis, value.ndim)
    if shifted.min(initial=0) >= -128 and shifted.max(initial=0) <= 127:
        return _Weights(shifted.astype("int8"), dequantised.scale, np.zeros(1, "int32"))
    middle = 128 if value.max(initial=0) > 127 else 0
    return _Weights((value - middle).astype("int8"), dequantised.scale, points - middle)


def _along(numbers: Array, axis: int, rank: int) -> Array:
    """One number, or one for each index of an axis, that broadcasts to a tensor of `rank` axes."""
    return numbers.reshape([-1 if position == axis else 1 for position in range(rank)])


def _axis_after(before: Sequence[int], axis: int, shape: Sequence[int]) -> int | None:
    """The axis of `shape` that an axis of a reshaped array has become; None where it is split or merged."""
    outer = math.prod(before[:axis])
    for position, size in enumerate(shape):
        if size == before[axis] and math.prod(shape[:position]) == outer:
            return position
    return None


def _rescale(rewriter: CallRewriter, sums: Any, offset: Array, scale: Array, shape: list[int]) -> Any:
    """scale * (total + offset) as float32; `offset` and `scale` have one entry for each output channel."""
    if np.any(offset):
        sums = rewriter.emit(relax.op.add(sums, const(offset.reshape(shape), "int32")))
    as_float = rewriter.emit(relax.op.astype(sums, "float32"))
    factor = const(scale, "float32") if scale.ndim == 0 else const(scale.reshape(shape), "float32")
    return relax.op.multiply(as_float, factor)


def _less(rewriter: CallRewriter, products: Any, sums: Any, rest: Array) -> Any:
    """products - rest * sums in int32."""
    return rewriter.emit(
        relax.op.subtract(products, rewriter.emit(relax.op.multiply(sums, const(rest, "int32"))))
    )


def _conv2d(rewriter: CallRewriter, call: Any) -> Any:
    attrs = call.attrs
    data_layout, kernel_layout = str(attrs.data_layout), str(attrs.kernel_layout)
    if sorted(data_layout) != sorted("NHWC") or sorted(kernel_layout) != sorted("HWIO"):
        return None
    image = _dequantised(rewriter, call.args[0])
    weights = _weights(rewriter, call.args[1], kernel_layout.index("O"))
    if image is None or weights is None or image.scale.size != 1:
        return None
    kernel, rest, outputs = weights.value, weights.rest, kernel_layout.index("O")
    if rest.any() and int(kernel.shape[kernel_layout.index("I")]) == 1:
        # Depthwise: there are no sums of products of 8 bits.
        kernel = (kernel.astype("int32") - _along(rest, outputs, kernel.ndim)).astype("int16")
        rest = np.zeros(1, "int32")
    data = image.data
    top, left, bottom, right = integers(attrs.padding)
    if any((top, left, bottom, right)) and image.zero_point != 0:
        amounts = {"H": (top, bottom), "W": (left, right)}
        widths = [amount for axis in data_layout for amount in amounts.get(axis, (0, 0))]
        data = rewriter.emit(relax.op.nn.pad(data, widths, "constant", float(image.zero_point)))
        top = left = bottom = right = 0
    groups = int(attrs.groups)

    def sums(values: Array) -> Any:
        sums_call = relax.op.nn.conv2d(
            data,
            const(values, str(values.dtype)),
            strides=integers(attrs.strides),
            padding=[top, left, bottom, right],
            dilation=integers(attrs.dilation),
            groups=groups,
            data_layout=data_layout,
            kernel_layout=kernel_layout,
            out_dtype="int32",
        )
        return rewriter.emit(sums_call)

    total = sums(kernel)
    reduced = tuple(axis for axis, name in enumerate(kernel_layout) if name != "O")
    offset = -image.zero_point * kernel.astype("int64").sum(axis=reduced)
    channels = offset.size
    if rest.any():
        ones = np.ones([groups if axis == outputs else n for axis, n in enumerate(kernel.shape)], "int8")
        windows = sums(ones)
        if groups > 1:
            windows = rewriter.emit(relax.op.repeat(windows, channels // groups, data_layout.index("C")))
        total = _less(rewriter, total, windows, _along(rest, data_layout.index("C"), len(data_layout)))
        offset = offset + rest.astype("int64") * image.zero_point * (kernel.size // channels)
    scales = np.broadcast_to(weights.scale, (channels,)) * image.scale[0]
    shape = [channels if axis == "C" else 1 for axis in data_layout]
    return _rescale(rewriter, total, offset, scales, shape)


def _conv1d(rewriter: CallRewriter, call: Any) -> Any:
    """A 1-D convolution as the 2-D convolution of images of one line."""
    attrs = call.attrs
    image, weights = (rewriter.definition(argument) for argument in call.args)
    if (str(attrs.data_layout), str(attrs.kernel_layout)) != ("NCW", "OIW"):
        return None
    if operator(image) != "relax.dequantize" or operator(weights) != "relax.dequantize":
        return None
    dequantised = _dequantised(rewriter, image)
    if dequantised is None or dequantised.scale.size != 1 or _weights(rewriter, weights, 0) is None:
        return None
    value = constant(rewriter.definition(weights.args[0]))
    if value is None:
        return None
    batch, channels, width = shape_of(image.args[0])
    moved = rewriter.emit(relax.op.permute_dims(image.args[0], [0, 2, 1]))
    operands = (
        rewriter.emit(relax.op.reshape(moved, [batch, 1, width, channels])),
        const(np.transpose(value, (2, 1, 0))[None], str(value.dtype)),
    )
    lines = [
        rewriter.emit(relax.op.dequantize(operand, *weights_or_data.args[1:], 3, "float32"))
        for operand, weights_or_data in zip(operands, (image, weights), strict=True)
    ]
    wide = relax.op.nn.conv2d(*lines, **in_one_line(attrs))
    result = rewriter.emit(_conv2d(rewriter, wide))
    batch, _, width, channels = shape_of(result)
    joined = rewriter.emit(relax.op.reshape(result, [batch, width, channels]))
    return relax.op.permute_dims(joined, [0, 2, 1])


def _matmul(rewriter: CallRewriter, call: Any) -> Any:
    if len(call.args[1].ty.shape) != 2:
        return None
    left = _dequantised(rewriter, call.args[0])
    weights = _weights(rewriter, call.args[1], 1)
    if left is None or weights is None or left.scale.size != 1:
        return None
    kernel, rest = weights.value, weights.rest
    total = rewriter.emit(relax.op.matmul(left.data, const(kernel, "int8"), out_dtype="int32"))
    offset = -left.zero_point * kernel.astype("int64").sum(axis=0)
    if rest.any():
        wide = rewriter.emit(relax.op.astype(left.data, "int32"))
        total = _less(rewriter, total, rewriter.emit(relax.op.sum(wide, -1, keepdims=True)), rest)
        offset = offset + rest.astype("int64") * left.zero_point * kernel.shape[0]
    scales = np.broadcast_to(weights.scale, offset.shape) * left.scale[0]
    rank = len(call.args[0].ty.shape)
    return _rescale(rewriter, total, offset, scales, [1] * (rank - 1) + [offset.size])


def integer_arithmetic(mod: tvm.IRModule) -> tvm.IRModule:
    """Compute quantised convolutions, matmuls, sums and means on integers."""
    transposed = TransposedConvolutions(_dequantised, _weights, _conv2d, count_uses(mod))
    return rewrite_calls(
        mod,
        {
            "relax.nn.conv1d": _conv1d,
            "relax.nn.conv1d_transpose": transposed.convolution,
            "relax.nn.conv2d": _conv2d,
            "relax.nn.conv2d_transpose": transposed.convolution,
            "relax.quantize": transposed.quantize,
            "relax.matmul": _matmul,
            **integer_sums(_dequantised, _rescale, greatest_size(mod)),
        },
    )
