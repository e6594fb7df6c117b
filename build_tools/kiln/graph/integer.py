"""IntegerArithmetic: convolutions and matmuls of quantised tensors are computed on integers.

A quantised model is imported as dequantize → float op → quantize. Where both operands of a convolution or a
matmul are dequantised and the weights are constant, the op is computed on the integers instead:

    conv(s_x (x - z_x), s_w (w - z_w)) = s_x s_w (conv(x, w - z_w) - z_x sum(w - z_w))

with an accumulator of 32 bits, or of 64 where that may not suffice, as for x of 16 bits. Padding is filled
with z_x, so that the second term is one constant per output channel. Weights of uint8 are stored as w - 128
in int8; the rest of their zero point, one or one for each output channel, is multiplied with the sum of each
window or row of x. The epilogue (bias, activation, quantize) stays in float and is fused after the
accumulator. Exact up to the rounding of that arithmetic, about 1e-7 of the accumulator (Jacob et al.,
"Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference", 2018, section
2.2).
Needs: parameters bound as constants. Other patterns stay in float arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax

from kiln.extents import shape_of
from kiln.graph.bindings import (
    Array,
    CallRewriter,
    const,
    constant,
    count_uses,
    integers,
    operator,
    rewrite_calls,
)
from kiln.graph.conv3d import Window, conv3d
from kiln.graph.convolutions import in_one_line
from kiln.graph.greatest_size import greatest_size
from kiln.graph.integer_dynamic import dynamic_product
from kiln.graph.integer_products import batch_product
from kiln.graph.integer_sums import integer_sums
from kiln.graph.integer_transposed import TransposedConvolutions
from kiln.graph.quantised_operands import (
    QuantisedOperand,
    QuantisedWeights,
    along,
    constant_weights,
    dequantised,
    less,
    rescale,
    scaled_levels,
    type_of_sums,
)


@dataclass(frozen=True)
class _Operands:
    """The quantised image and the constant weights of a convolution.

    `scales`: of the image, one, or one for each output channel. `sums`: the type of the sums.
    """

    image: QuantisedOperand
    weights: QuantisedWeights
    scales: Array
    sums: str


def _operands(
    rewriter: CallRewriter, call: relax.Call, data_layout: str, kernel_layout: str
) -> _Operands | None:
    """The operands of a convolution that integers compute; None for others.

    Channels of the image may have scales of their own where no sum is over several channels.
    """
    output_axis = kernel_layout.index("O")
    image = dequantised(rewriter, call.args[0])
    weights = constant_weights(rewriter, call.args[1], output_axis)
    if image is None or weights is None:
        return None
    scales = image.scale
    if scales.size != 1:
        shape = weights.value.shape
        if image.axis != data_layout.index("C") or int(shape[kernel_layout.index("I")]) != 1:
            return None
        scales = np.repeat(scales, int(shape[output_axis]) // scales.size)
    summed = [axis for axis in range(weights.value.ndim) if axis != output_axis]
    return _Operands(image, weights, scales, type_of_sums(image, weights, summed))


def _conv2d(rewriter: CallRewriter, call: relax.Call) -> Any:
    attrs = call.attrs
    data_layout, kernel_layout = str(attrs.data_layout), str(attrs.kernel_layout)
    if sorted(data_layout) != sorted("NHWC") or sorted(kernel_layout) != sorted("HWIO"):
        return None
    operands = _operands(rewriter, call, data_layout, kernel_layout)
    if operands is None:
        return None
    data, padding = _padded(rewriter, operands.image, integers(attrs.padding), data_layout)

    def sums(values: Array) -> Any:
        sums_call = relax.op.nn.conv2d(
            data,
            const(values, str(values.dtype)),
            strides=integers(attrs.strides),
            padding=padding,
            dilation=integers(attrs.dilation),
            groups=int(attrs.groups),
            data_layout=data_layout,
            kernel_layout=kernel_layout,
            out_dtype=operands.sums,
        )
        return rewriter.emit(sums_call)

    return _less_zero_points(rewriter, sums, operands, data_layout, kernel_layout, int(attrs.groups))


def _padded(
    rewriter: CallRewriter, image: QuantisedOperand, padding: list[int], layout: str
) -> tuple[Any, list[int]]:
    """The levels of an image with zeros around it, and the padding that is left to the convolution.

    `padding`: before the first element of each spatial axis of `layout`, then after the last of each.
    """
    if not any(padding) or image.zero_point == 0:
        return image.data, padding
    spatial = [axis for axis in "DHW" if axis in layout]
    ends = dict(zip(spatial, zip(padding[: len(spatial)], padding[len(spatial) :], strict=True), strict=True))
    widths = [width for axis in layout for width in ends.get(axis, (0, 0))]
    data = rewriter.emit(relax.op.nn.pad(image.data, widths, "constant", float(image.zero_point)))
    return data, [0] * len(padding)


def _less_zero_points(
    rewriter: CallRewriter, sums: Callable[[Array], Any], operands: _Operands,
    data_layout: str, kernel_layout: str, groups: int,
) -> Any:  # fmt: skip
    """The convolution of dequantised operands. `sums`: emits the sums of products of levels with a kernel."""
    image, weights = operands.image, operands.weights
    kernel, rest, outputs = weights.value, weights.rest, kernel_layout.index("O")
    if rest.any() and kernel.dtype == np.int8 and int(kernel.shape[kernel_layout.index("I")]) == 1:
        # Depthwise: there are no sums of products of 8 bits.
        kernel = (kernel.astype("int32") - along(rest, outputs, kernel.ndim)).astype("int16")
        rest = np.zeros(1, "int32")
    total = sums(kernel)
    reduced = tuple(axis for axis, name in enumerate(kernel_layout) if name != "O")
    offset = -image.zero_point * kernel.astype("int64").sum(axis=reduced)
    channels = offset.size
    if rest.any():
        ones = np.ones([groups if axis == outputs else n for axis, n in enumerate(kernel.shape)], "int8")
        windows = sums(ones)
        if groups > 1:
            windows = rewriter.emit(relax.op.repeat(windows, channels // groups, data_layout.index("C")))
        total = less(rewriter, total, windows, along(rest, data_layout.index("C"), len(data_layout)))
        offset = offset + rest.astype("int64") * image.zero_point * (kernel.size // channels)
    scales = np.broadcast_to(weights.scale, (channels,)) * operands.scales
    shape = [channels if axis == "C" else 1 for axis in data_layout]
    return rescale(rewriter, total, offset, scales, shape)


# Layout of volumes → the permutations of axes to NDHWC and back; None: none is needed.
_VOLUMES: dict[str, tuple[list[int], list[int]] | None] = {
    "NCDHW": ([0, 2, 3, 4, 1], [0, 4, 1, 2, 3]), "NDHWC": None,
}  # fmt: skip


def _conv3d(rewriter: CallRewriter, call: relax.Call) -> Any:
    """A 3-D convolution as 2-D ones, see kiln.graph.conv3d."""
    attrs = call.attrs
    layout, kernel_layout = str(attrs.data_layout), str(attrs.kernel_layout)
    if layout not in _VOLUMES or sorted(kernel_layout) != sorted("DHWIO"):
        return None
    operands = _operands(rewriter, call, layout, kernel_layout)
    if operands is None:
        return None
    image, moves = operands.image, _VOLUMES[layout]
    data, padding = _padded(rewriter, image, integers(attrs.padding), layout)
    if moves is not None:
        data = rewriter.emit(relax.op.permute_dims(data, moves[0]))
    window = Window(
        integers(attrs.strides), padding, integers(attrs.dilation), int(attrs.groups), operands.sums
    )

    def sums(values: Array) -> Any:
        kernel = np.transpose(values, [kernel_layout.index(axis) for axis in "DHWIO"])
        return conv3d(rewriter, data, kernel, window)

    result = _less_zero_points(rewriter, sums, operands, "NDHWC", kernel_layout, window.groups)
    return result if moves is None else relax.op.permute_dims(rewriter.emit(result), moves[1])


def _conv1d(rewriter: CallRewriter, call: relax.Call) -> Any:
    """A 1-D convolution as the 2-D convolution of images of one line."""
    attrs = call.attrs
    image, weights = (rewriter.definition(argument) for argument in call.args)
    if (str(attrs.data_layout), str(attrs.kernel_layout)) != ("NCW", "OIW"):
        return None
    if operator(image) != "relax.dequantize" or operator(weights) != "relax.dequantize":
        return None
    levels = dequantised(rewriter, image)
    if levels is None or constant_weights(rewriter, weights, 0) is None:
        return None
    if levels.scale.size != 1 and levels.axis != 1:
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
    sums = _conv2d(rewriter, wide)
    if sums is None:
        return None
    result = rewriter.emit(sums)
    batch, _, width, channels = shape_of(result)
    joined = rewriter.emit(relax.op.reshape(result, [batch, width, channels]))
    return relax.op.permute_dims(joined, [0, 2, 1])


def _matmul(rewriter: CallRewriter, call: relax.Call) -> Any:
    if len(call.args[1].ty.shape) != 2:
        return batch_product(rewriter, call)
    left = scaled_levels(rewriter, call.args[0])
    weights = constant_weights(rewriter, call.args[1], 1)
    if left is None or weights is None:
        product = None if weights is None else dynamic_product(rewriter, call.args[0], weights)
        return batch_product(rewriter, call) if product is None else product
    kernel, rest, kind = weights.value, weights.rest, type_of_sums(left, weights, [0])
    total = rewriter.emit(relax.op.matmul(left.data, const(kernel, str(kernel.dtype)), out_dtype=kind))
    offset = -left.zero_point * kernel.astype("int64").sum(axis=0)
    if rest.any():
        wide = rewriter.emit(relax.op.astype(left.data, kind))
        total = less(rewriter, total, rewriter.emit(relax.op.sum(wide, -1, keepdims=True)), rest)
        offset = offset + rest.astype("int64") * left.zero_point * kernel.shape[0]
    scales = np.broadcast_to(weights.scale, offset.shape) * left.scale[0]
    rank = len(call.args[0].ty.shape)
    return rescale(rewriter, total, offset, scales, [1] * (rank - 1) + [offset.size])


def integer_arithmetic(mod: tvm.IRModule) -> tvm.IRModule:
    """Compute quantised convolutions, matmuls, sums and means on integers."""
    transposed = TransposedConvolutions(_conv2d, _conv3d, count_uses(mod))
    return rewrite_calls(
        mod,
        {
            "relax.nn.conv1d": _conv1d,
            "relax.nn.conv1d_transpose": transposed.convolution,
            "relax.nn.conv2d": _conv2d,
            "relax.nn.conv3d": _conv3d,
            "relax.nn.conv2d_transpose": transposed.convolution,
            "relax.nn.conv3d_transpose": transposed.convolution,
            "relax.quantize": transposed.quantize,
            "relax.matmul": _matmul,
            **integer_sums(greatest_size(mod)),
        },
    )
