"""Operators on quantised tensors (QOperator format): each is DequantizeLinear → operator → QuantizeLinear.

Later passes compute them on integers where possible, like those of a model in QDQ format
(kiln.graph.integer).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kiln.frontend.onnx.body import Body, Expansion
from kiln.frontend.onnx.quantise_ops import check_scale


def _dequantised_input(body: Body, first: int, axis: int = 1) -> str:
    """The inputs `first` (data), `first` + 1 (scale) and `first` + 2 (zero point) as one float tensor."""
    return dequantised(body, body.input(first), body.input(first + 1), body.input(first + 2), axis)


def dequantised(body: Body, data: str, scale: str, zero: str, axis: int = 1) -> str:
    """A quantised tensor in float32; `axis`: the axis of a scale with several values."""
    return body.op("DequantizeLinear", data, scale, zero, axis=axis)


def _quantised(body: Body, value: str, first: int, dtype: str) -> list[str]:
    """A float tensor quantised with inputs `first` (scale) and `first` + 1 (zero point; omitted: 0)."""
    scale, zero = body.input(first), body.input(first + 1)
    if not zero:
        zero = body.const(np.zeros((), dtype))
    return [body.op("QuantizeLinear", value, scale, zero)]


def _bias(body: Body, name: str, a_scale: str, b_scale: str) -> str:
    """An int32 bias of scale a_scale * b_scale in float32."""
    check_scale(body, a_scale)
    check_scale(body, b_scale, of_weights=True)
    factors = [body.reshape(name, [-1]) if body.rank(name) else name for name in (a_scale, b_scale)]
    values = [body.constant(name) for name in (a_scale, b_scale)]
    if values[0] is not None and values[1] is not None:
        product = body.const(
            values[0].reshape(-1).astype("float32") * values[1].reshape(-1).astype("float32")
        )
    else:
        product = body.op("Mul", *factors)
    return body.op("Mul", body.cast(name, "float32"), product)


def _attributes_given(body: Body, *names: str) -> dict[str, Any]:
    """The attributes `names` of the node, without those that it does not have."""
    values = {name: body.attribute(name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def qlinear_conv(body: Body) -> list[str]:
    """QLinearConv."""
    attributes = _attributes_given(body, "auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    if body.attribute("channels_last", 0):
        raise ValueError(
            "its attribute 'channels_last' is 1, allowed: 0 (export without layout optimisation)"
        )
    inputs = [_dequantised_input(body, 0), _dequantised_input(body, 3, axis=0)]
    if body.has(8):
        inputs.append(_bias(body, body.input(8), body.input(1), body.input(4)))
    return _quantised(body, body.op("Conv", *inputs, **attributes), 6, body.dtype(body.input(0)))


def qlinear_matmul(body: Body) -> list[str]:
    """QLinearMatMul; scales are scalars, one per row of the first factor or one per column of the second."""
    ranks = [body.rank(body.input(index)) for index in (0, 3)]
    factors = [
        _dequantised_rows(body, 0, ranks[0] - 2) if ranks[0] > 1 else _dequantised_input(body, 0),
        _dequantised_rows(body, 3, ranks[1] - 1),
    ]
    return _quantised(body, body.op("MatMul", *factors), 6, body.dtype(body.input(0)))


def _dequantised_rows(body: Body, first: int, axis: int) -> str:
    """Input `first` in float32; its scales are a scalar, a vector along `axis`, or of the input's rank."""
    data, scale, zero = (body.input(first + offset) for offset in range(3))
    if body.rank(scale) <= 1:
        return dequantised(body, data, scale, zero, axis)
    centred = body.op("Sub", body.cast(data, "int32"), body.cast(zero, "int32"))
    return body.op("Mul", body.cast(centred, "float32"), scale)


def _binary(op_type: str) -> Expansion:
    def convert(body: Body) -> list[str]:
        value = body.op(op_type, _dequantised_input(body, 0), _dequantised_input(body, 3))
        return _quantised(body, value, 6, body.dtype(body.input(0)))

    return convert


def qlinear_leaky_relu(body: Body) -> list[str]:
    """com.microsoft.QLinearLeakyRelu."""
    value = body.op("LeakyRelu", _dequantised_input(body, 0), alpha=body.attribute("alpha", 0.01))
    return _quantised(body, value, 3, body.dtype(body.input(0)))


def qlinear_sigmoid(body: Body) -> list[str]:
    """com.microsoft.QLinearSigmoid."""
    return _quantised(body, body.op("Sigmoid", _dequantised_input(body, 0)), 3, body.dtype(body.input(0)))


def qlinear_softmax(body: Body) -> list[str]:
    """com.microsoft.QLinearSoftmax; before opset 13, softmax of all axes from `axis` on."""
    value, rank = _dequantised_input(body, 0), body.rank(body.input(0))
    axis = int(body.attribute("axis", -1)) % rank
    if int(body.required("opset")) < 13 and axis != rank - 1:
        sizes = body.shape(value)
        flat = body.reshape(value, [*sizes[:axis], -1])
        value = body.reshape(body.op("Softmax", flat, axis=-1), sizes)
    else:
        value = body.op("Softmax", value, axis=axis)
    return _quantised(body, value, 3, body.dtype(body.input(0)))


def qlinear_concat(body: Body) -> list[str]:
    """com.microsoft.QLinearConcat: inputs are the result's scale and zero point, then three per tensor."""
    tensors = [_dequantised_input(body, first) for first in range(2, len(body.node.input), 3)]
    value = body.op("Concat", *tensors, axis=body.required("axis"))
    return _quantised(body, value, 0, body.dtype(body.input(2)))


def _pool(op_type: str) -> Expansion:
    def convert(body: Body) -> list[str]:
        last = bool(body.attribute("channels_last", 0))
        keys = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")
        attributes = _attributes_given(body, *keys) if op_type == "AveragePool" else {}
        value = _dequantised_input(body, 0)
        if last:
            value = body.channels_first(value)
        value = body.op(op_type, value, **attributes)
        if last:
            value = body.channels_last(value)
        return _quantised(body, value, 3, body.dtype(body.input(0)))

    return convert


def qlinear_reduce_mean(body: Body) -> list[str]:
    """com.microsoft.QLinearReduceMean."""
    axes = body.attribute("axes")
    inputs = [_dequantised_input(body, 0)]
    if axes is not None:
        inputs.append(body.const(np.array(axes, "int64")))
    value = body.op("ReduceMean", *inputs, keepdims=body.attribute("keepdims", 1))
    return _quantised(body, value, 3, body.dtype(body.input(0)))


def qlinear_where(body: Body) -> list[str]:
    """com.microsoft.QLinearWhere."""
    value = body.op("Where", body.input(0), _dequantised_input(body, 1), _dequantised_input(body, 4))
    return _quantised(body, value, 7, body.dtype(body.input(1)))


def qgemm(body: Body) -> list[str]:
    """com.microsoft.QGemm: alpha * A @ B + C, quantised unless the scale of the result is omitted."""
    transposed = [bool(body.attribute(name, 0)) for name in ("transA", "transB")]
    alpha = float(body.attribute("alpha", 1.0))
    left = _dequantised_input(body, 0)
    right = _dequantised_input(body, 3, axis=0 if transposed[1] else 1)
    left = body.transpose(left, [1, 0]) if transposed[0] else left
    right = body.transpose(right, [1, 0]) if transposed[1] else right
    value = body.op("MatMul", left, right)
    if body.has(6):
        value = body.op("Add", value, _bias(body, body.input(6), body.input(1), body.input(4)))
    if alpha != 1.0:
        value = body.op("Mul", value, body.const(alpha, "float32"))
    return _quantised(body, value, 7, body.dtype(body.input(0))) if body.has(7) else [value]


ONNX: dict[str, Expansion] = {"QLinearConv": qlinear_conv, "QLinearMatMul": qlinear_matmul}
MICROSOFT: dict[str, Expansion] = {
    "QGemm": qgemm,
    "QLinearAdd": _binary("Add"),
    "QLinearAveragePool": _pool("AveragePool"),
    "QLinearConcat": qlinear_concat,
    "QLinearConv": qlinear_conv,
    "QLinearGlobalAveragePool": _pool("GlobalAveragePool"),
    "QLinearLeakyRelu": qlinear_leaky_relu,
    "QLinearMul": _binary("Mul"),
    "QLinearReduceMean": qlinear_reduce_mean,
    "QLinearSigmoid": qlinear_sigmoid,
    "QLinearSoftmax": qlinear_softmax,
    "QLinearWhere": qlinear_where,
}
