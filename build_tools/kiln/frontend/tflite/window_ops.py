"""Converters of TFLite operators with windows or weights, which TVM 0.27 lacks, refuses or converts wrongly.

A float operator with int8 weights (a dynamic-range quantised, or hybrid, model) computes with the real
weights; LiteRT also rounds the activations to 8 bits, so its results are less exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tflite
from tvm import relax
from tvm.relax.frontend.tflite import tflite_frontend

from kiln.frontend.tflite.int16_products import (
    Products,
    int16_products,
    multiplies_int16,
    reshaped,
    transposed,
)
from kiln.frontend.tflite.operands import TfliteOperands, const

op = relax.op
_MOST_PLACES = 1024  # in a window


def _pads(padding: int, sizes: list[int], kernel: list[int], strides: list[int]) -> list[int]:
    if padding == tflite.Padding.VALID:
        return [0] * 2 * len(sizes)
    pairs = [
        tflite_frontend.get_pad_value(size, length, stride)
        for size, length, stride in zip(sizes, kernel, strides, strict=True)
    ]
    return [before for before, _ in pairs] + [after for _, after in pairs]


def _biased(node: TfliteOperands, result: Any, index: int, activation: int) -> Any:
    """The result with the bias, input `index`, and the fused activation, as it is stored."""
    if node.has(index):
        result = op.add(node.emit(result), node.real(index))
    return node.store(result, activation)


def is_hybrid(node: TfliteOperands, weights: int = 1) -> bool:
    """Whether a float operator has quantised weights."""
    return node.inputs[0].qnn_params is None and node.inputs[weights].qnn_params is not None


def _convolution(node: TfliteOperands, options: Any, groups: int) -> Callable[..., Any]:
    """The convolution of data (NHWC) with weights (HWIO) that the options of CONV_2D describe."""
    _, height, width, _ = node.shape(1)
    strides = [options.StrideH(), options.StrideW()]
    dilation = [options.DilationHFactor(), options.DilationWFactor()]
    kernel = [(size - 1) * d + 1 for size, d in zip((height, width), dilation, strict=True)]
    return partial(
        op.nn.conv2d, strides=strides, dilation=dilation, groups=groups, data_layout="NHWC",
        kernel_layout="HWIO", padding=_pads(options.Padding(), node.shape(0)[1:3], kernel, strides),
    )  # fmt: skip


def conv_2d(node: TfliteOperands) -> Any:
    """CONV_2D of floats with quantised weights, and of int16; TVM converts other types."""
    options = node.options("Conv2DOptions")
    _, height, width, depth = node.shape(1)
    convolve, activation = (
        _convolution(node, options, node.shape(0)[3] // depth),
        options.FusedActivationFunction(),
    )
    if multiplies_int16(node):
        products = Products(
            lambda weights, dtype: convolve(node.raw(0), weights, out_dtype=dtype),
            partial(transposed, axes=(1, 2, 3, 0)), height * width * depth, activation=activation,
        )  # fmt: skip
        return int16_products(node, products)
    if not is_hybrid(node):
        return None
    result = convolve(node.raw(0), node.emit(op.permute_dims(node.real(1), [1, 2, 3, 0])))
    return _biased(node, result, 2, activation)


def depthwise_conv_2d(node: TfliteOperands) -> Any:
    """DEPTHWISE_CONV_2D of floats with quantised weights, and of int16; TVM converts other types."""
    options = node.options("DepthwiseConv2DOptions")
    _, height, width, channels = node.shape(1)
    convolve, activation = (
        _convolution(node, options, node.shape(0)[3]),
        options.FusedActivationFunction(),
    )
    shape = [height, width, 1, channels]
    if multiplies_int16(node):
        products = Products(
            lambda weights, dtype: convolve(node.raw(0), weights, out_dtype=dtype),
            partial(reshaped, shape=shape), height * width, activation=activation,
        )  # fmt: skip
        return int16_products(node, products)
    if not is_hybrid(node):
        return None
    result = convolve(node.raw(0), node.emit(op.reshape(node.real(1), shape)))
    return _biased(node, result, 2, activation)


def fully_connected(node: TfliteOperands) -> Any:
    """FULLY_CONNECTED of int16, of floats with quantised weights, and of rows over axes; else by TVM.

    Raises ValueError for an input that cannot be divided into whole rows.
    """
    depth = node.shape(1)[1]
    options = node.options("FullyConnectedOptions")
    rows, rest = divmod(math.prod(node.shape(0)), depth)
    if rest:
        raise ValueError(
            f"its input of shape {list(node.shape(0))} has {rows * depth + rest} elements, allowed: multiples"
            f" of {depth}, the columns of its weights; a dynamic size may need a 'multiple' in 'dims'"
        )
    if multiplies_int16(node):
        levels = node.emit(op.reshape(node.raw(0), [rows, depth]))
        products = Products(
            lambda weights, dtype: op.matmul(levels, weights, out_dtype=dtype),
            partial(transposed, axes=(1, 0)), depth, activation=options.FusedActivationFunction(),
            real=True,
        )  # fmt: skip
        return op.reshape(node.emit(int16_products(node, products)), node.result_shape())
    if not is_hybrid(node) and node.shape(0)[-1:] == [depth]:
        return None
    data = node.emit(op.reshape(node.real(0), [rows, depth]))
    products = node.emit(op.matmul(data, node.emit(op.permute_dims(node.real(1), [1, 0]))))
    return op.reshape(
        node.emit(_biased(node, products, 2, options.FusedActivationFunction())), node.result_shape()
    )


def transpose_conv(node: TfliteOperands) -> Any:
    """TRANSPOSE_CONV in the layout that graph/transposed_conv.py rewrites; TVM 0.27's reaches no kernel."""
    options = node.options("TransposeConvOptions")
    _, height, width, _ = node.result_shape()
    strides, kernel = [options.StrideH(), options.StrideW()], node.shape(1)[1:3]  # (O, H, W, I)
    pads = _pads(options.Padding(), [height, width], kernel, strides)
    top, left = pads[0], pads[1]
    sizes = node.shape(2)[1:3]
    full_sizes = [(size - 1) * s + k for size, s, k in zip(sizes, strides, kernel, strict=True)]
    # The part of the full result from (top, left) on is taken; rows beyond the result are the bias alone.
    below, right = max(top + height - full_sizes[0], 0), max(left + width - full_sizes[1], 0)
    cropped = [top, left, full_sizes[0] + below - top - height, full_sizes[1] + right - left - width]
    if below or right:
        cropped = [0, 0, 0, 0]
    transpose = partial(
        op.nn.conv2d_transpose, strides=strides, padding=cropped, data_layout="NCHW", kernel_layout="IOHW"
    )

    def full_result(values: Any, weights: Any, **more: Any) -> Any:
        data = node.emit(op.permute_dims(values, [0, 3, 1, 2]))
        result = node.emit(transpose(data, node.emit(weights), **more))
        result = node.emit(op.permute_dims(result, [0, 2, 3, 1]))
        if below or right:
            result = node.emit(op.nn.pad(result, [0, 0, 0, below, 0, right, 0, 0]))
            result = node.emit(op.strided_slice(result, [1, 2], [top, left], [top + height, left + width]))
        return result

    activation, order = options.FusedActivationFunction(), (3, 0, 1, 2)
    if multiplies_int16(node, 2):
        products = Products(
            lambda weights, dtype: full_result(node.raw(2), weights, out_dtype=dtype),
            partial(transposed, axes=order), math.prod(node.shape(1)[1:]), 3, activation, data=2,
            output_axis=1,
        )  # fmt: skip
        return int16_products(node, products)
    is_integer = all(str(node.raw(index).ty.dtype) in ("int8", "uint8") for index in (1, 2))
    if is_integer:  # a pass computes it on integers, which reads the weights as they are stored
        weights = op.permute_dims(node.real(1), order)
    else:
        weights = const(node.constant_real(1).transpose(order), "float32")
    return _biased(node, full_result(node.real(2), weights), 3, activation)


def conv_3d_transpose(node: TfliteOperands) -> Any:
    """CONV_3D_TRANSPOSE, cropped to the size in the file; what is behind the windows is zero."""
    options = node.options("Conv3DOptions")
    strides = [options.StrideD(), options.StrideH(), options.StrideW()]
    if [options.DilationDFactor(), options.DilationHFactor(), options.DilationWFactor()] != [1, 1, 1]:
        raise ValueError("its dilation is not 1, which LiteRT has no kernel for: put zeros into the weights")
    weights = node.constant_real(1)
    kernel, sizes, result = list(weights.shape[:3]), node.shape(2)[1:4], node.result_shape()[1:4]
    before = _pads(options.Padding(), result, kernel, strides)[:3]
    after = [
        (size - 1) * stride + window - pad - wanted
        for size, stride, window, pad, wanted in zip(sizes, strides, kernel, before, result, strict=True)
    ]
    data = node.emit(op.permute_dims(node.raw(2), [0, 4, 1, 2, 3]))
    transposed_weights = const(weights.transpose(4, 3, 0, 1, 2), "float32")
    cropped = [*before, *(max(number, 0) for number in after)]
    values = node.emit(op.nn.conv3d_transpose(data, transposed_weights, strides=strides, padding=cropped))
    values = node.emit(op.permute_dims(values, [0, 2, 3, 4, 1]))
    if min(after) < 0:
        values = node.emit(
            op.nn.pad(values, [0, 0, *(n for number in after for n in (0, max(-number, 0))), 0, 0])
        )
    return _biased(node, values, 3, options.FusedActivationFunction())


def reduce_window(node: TfliteOperands) -> Any:
    """REDUCE_WINDOW as one operation for each place in the window, of at most 1024 places."""
    options = node.options("ReduceWindowOptions")
    kinds = {1: op.add, 2: op.multiply, 3: op.minimum, 4: op.maximum, 5: op.logical_and, 6: op.logical_or}
    combine = kinds.get(int(options.ReduceFunction()))
    window, strides, dilations = ([int(n) for n in node.constant_array(index)] for index in (2, 3, 4))
    if combine is None or math.prod(window) > _MOST_PLACES:
        raise ValueError(f"a window of {window} by function {options.ReduceFunction()}: not supported")
    result, axes = node.result_shape(), list(range(len(window)))
    reduced = node.emit(op.broadcast_to(node.raw(1), relax.ShapeExpr(result)))
    for offset_in_window in np.ndindex(*window):
        begin = [index * dilation for index, dilation in zip(offset_in_window, dilations, strict=True)]
        sizes = zip(begin, result, strides, strict=True)
        end = [first + (size - 1) * stride + 1 for first, size, stride in sizes]
        elements = node.emit(op.strided_slice(node.raw(0), axes, begin, end, strides))
        reduced = node.emit(combine(reduced, elements))
    return reduced


CONVERTERS: dict[str, Callable[[TfliteOperands], Any]] = {
    "CONV_2D": conv_2d,
    "CONV_3D_TRANSPOSE": conv_3d_transpose,
    "DEPTHWISE_CONV_2D": depthwise_conv_2d,
    "FULLY_CONNECTED": fully_connected,
    "REDUCE_WINDOW": reduce_window,
    "TRANSPOSE_CONV": transpose_conv,
}
