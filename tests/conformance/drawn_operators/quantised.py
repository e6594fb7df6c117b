"""Operators on quantised tensors, of ONNX and of ONNX Runtime."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from .draw import Draw, Input, Maker, Node
from .elementwise import broadcast_pair
from .products import matrices
from .windows import check_reach, picture, window

BYTES = ("int8", "uint8")
MICROSOFT = "com.microsoft"


def zero(d: Draw, dtype: str, shape: tuple[int, ...] = ()) -> Input:
    value = d.indices(shape, -9, 9) if dtype.startswith("int") else d.indices(shape, 110, 140)
    return d.constant(value.astype(dtype))


def scale(d: Draw, shape: tuple[int, ...] = (), around: float = 0.05) -> Input:
    return d.constant((around * (0.5 + np.abs(d.values(shape, "float32", 0.5)))).astype("float32"))


def _per_axis(d: Draw, shape: tuple[int, ...]) -> tuple[tuple[int, ...], int | None, int | None]:
    """The shape of scales, their axis and the size of a block: for the tensor, an axis or blocks."""
    form = d.pick(("tensor", "axis", "block" if d.opset >= 21 else "axis"))
    if form == "tensor" or not shape or d.opset < 13:
        return (), None, None
    axis = d.axis(len(shape))
    if form == "axis":
        return (shape[axis],), axis, None
    block = d.number(1, shape[axis])
    count = -(-shape[axis] // block)
    return tuple(count if at == axis % len(shape) else size for at, size in enumerate(shape)), axis, block


def quantize(d: Draw) -> Node:
    shape = tuple(d.number(1, 5) for _ in range(d.number(0, 4)))
    dtype = d.pick(("int8", "uint8") + (("int16", "uint16") if d.opset >= 21 else ()))
    scales, axis, block = _per_axis(d, shape)
    point = zero(d, dtype, scales) if dtype != "uint8" or d.chance() else None
    attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
    return d.node(d.data(d.values(shape)), scale(d, scales), point, block_size=block, **attributes)


def dequantize(d: Draw) -> Node:
    shape = tuple(d.number(1, 5) for _ in range(d.number(0, 4)))
    dtype = d.pick(("int8", "uint8", "int32") + (("int16", "uint16") if d.opset >= 21 else ()))
    scales, axis, block = _per_axis(d, shape)
    point = zero(d, dtype, scales) if dtype != "int32" and d.chance() else None
    attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
    return d.node(d.data(d.values(shape, dtype)), scale(d, scales), point, block_size=block, **attributes)


def dynamic_quantize(d: Draw) -> Node:
    return d.node(d.data(d.values(d.shape(1, 4))), outputs=3)


def matmul_integer(d: Draw) -> Node:
    first, second = matrices(d)
    a, b = d.pick(BYTES), d.pick(BYTES)
    points = [zero(d, a), zero(d, b, (second[-1],) if len(second) == 2 and d.chance() else ())]
    operands = points[: d.number(0, 2)]
    return d.node(d.data(d.values(first, a)), d.either(d.values(second, b), data=0.3), *operands)


def qlinear_matmul(d: Draw) -> Node:
    first, second = matrices(d)
    a, b = d.pick(BYTES), d.pick(BYTES)
    parts = (second[-1],) if len(second) == 2 and d.chance() else ()
    return d.node(
        d.data(d.values(first, a)),
        scale(d),
        zero(d, a),
        d.either(d.values(second, b), data=0.3),
        scale(d, parts),
        zero(d, b, parts),
        scale(d, (), 0.5),
        zero(d, a),
    )


def _convolved(d: Draw) -> tuple[Any, Any, int, dict[str, Any], str, str]:
    groups = d.pick((1, 1, 2))
    shape = picture(d, groups * d.number(1, 3), most_rank=2)
    attributes = window(d, len(shape) - 2)
    a, b = d.pick(BYTES), d.pick(BYTES)
    outputs = groups * d.number(1, 3)
    weight = d.values((outputs, shape[1] // groups, *attributes["kernel_shape"]), b)
    if groups > 1:
        attributes["group"] = groups
    return d.values(shape, a), weight, outputs, attributes, a, b


def conv_integer(d: Draw) -> Node:
    x, weight, outputs, attributes, a, b = _convolved(d)
    operands = [zero(d, a), zero(d, b, (outputs,) if d.chance(0.3) else ())][: d.number(0, 2)]
    return d.node(d.data(x), d.either(weight, data=0.3), *operands, **attributes)


def qlinear_conv(d: Draw) -> Node:
    x, weight, outputs, attributes, a, b = _convolved(d)
    parts = (outputs,) if d.chance() else ()
    point = d.constant(np.zeros(parts, b)) if parts else zero(d, b)
    bias = d.constant(d.indices((outputs,), -500, 500, "int32")) if d.chance() else None
    return d.node(
        d.data(x),
        scale(d),
        zero(d, a),
        d.constant(weight),
        scale(d, parts),
        point,
        scale(d, (), 0.5),
        zero(d, a),
        bias,
        **attributes,
    )


def qlinear_binary(d: Draw) -> Node:
    first, second = broadcast_pair(d, 4)
    dtype = d.pick(BYTES)
    points = [zero(d, dtype) for _ in range(3)]
    return d.node(
        d.data(d.values(first, dtype)),
        scale(d),
        points[0],
        d.either(d.values(second, dtype), data=0.6),
        scale(d),
        points[1],
        scale(d, (), 0.1),
        points[2],
        domain=MICROSOFT,
    )


def qlinear_unary(around: float, d: Draw, **attributes: Any) -> Node:
    dtype = d.pick(BYTES)
    return d.node(
        d.data(d.values(d.shape(1, 4), dtype)),
        scale(d),
        zero(d, dtype),
        scale(d, (), around),
        zero(d, dtype),
        domain=MICROSOFT,
        **attributes,
    )


def qlinear_leaky(d: Draw) -> Node:
    return qlinear_unary(0.05, d, **d.some(alpha=d.real(0, 1)))


def qlinear_softmax(d: Draw) -> Node:
    shape, dtype = d.shape(1, 4, 2), d.pick(BYTES)
    if 1 in shape:
        raise ValueError("a probability of 1, which is 256 steps: ONNX Runtime makes 0 of it")
    point = d.constant(np.asarray(0 if dtype == "uint8" else -128, dtype))
    return d.node(
        d.data(d.values(shape, dtype)),
        scale(d),
        zero(d, dtype),
        d.constant(np.float32(1 / 256)),
        point,
        domain=MICROSOFT,
        opset=d.pick((11, 13)),
        axis=d.axis(len(shape)),
    )


def qlinear_concat(d: Draw) -> Node:
    shape, dtype = list(d.shape(1, 4)), d.pick(BYTES)
    axis = d.axis(len(shape))
    operands: list[Input] = [scale(d), zero(d, dtype)]
    for number in range(d.number(1, 3)):
        shape[axis] = d.size(1, 4)
        value = d.values(shape, dtype)
        operands += [d.data(value) if not number else d.either(value, data=0.7), scale(d), zero(d, dtype)]
    return d.node(*operands, domain=MICROSOFT, axis=axis)


def qlinear_pool(d: Draw) -> Node:
    last = d.number(0, 1)
    channels = d.number(1, 3)
    shape = picture(d, channels, most_rank=2)
    rank, dtype, spatial = len(shape) - 2, d.pick(BYTES), shape[2:]
    if last:
        shape = (shape[0], *shape[2:], channels)
    attributes: dict[str, Any] = {}
    if d.operator == "QLinearAveragePool":
        attributes = window(d, rank, False) | d.some(
            ceil_mode=d.number(0, 1), count_include_pad=d.number(0, 1)
        )
        check_reach(attributes, spatial)
        pairs = zip(attributes["kernel_shape"], attributes.get("strides", [1] * rank), strict=True)
        if "auto_pad" in attributes and any(width < stride for width, stride in pairs):
            raise ValueError("auto_pad of windows apart: ONNX Runtime pads by negative amounts")
    return d.node(
        d.data(d.values(shape, dtype)),
        scale(d),
        zero(d, dtype),
        scale(d),
        zero(d, dtype),
        domain=MICROSOFT,
        **d.some(channels_last=last) if not last else {"channels_last": 1},
        **attributes,
    )


def qlinear_where(d: Draw) -> Node:
    first, second = broadcast_pair(d, 4)
    dtype = d.pick(BYTES)
    return d.node(
        d.data(d.values(first, "bool")),
        d.data(d.values(second, dtype)),
        scale(d),
        zero(d, dtype),
        d.either(d.values(second, dtype)),
        scale(d),
        zero(d, dtype),
        scale(d),
        zero(d, dtype),
        domain=MICROSOFT,
    )


def qgemm(d: Draw) -> Node:
    m, k, n, right, left = d.size(), d.size(1, 8), d.size(), d.number(0, 1), d.number(0, 1)
    a, b = d.pick(BYTES), d.pick(BYTES)
    parts = (n,) if d.chance() else ()
    bias = d.constant(d.indices((n,), -500, 500, "int32")) if d.chance() else None
    tail = [scale(d, (), 0.5), zero(d, a)] if d.chance(0.7) else []
    return d.node(
        d.data(d.values((k, m) if left else (m, k), a)),
        scale(d),
        zero(d, a),
        d.constant(d.values((n, k) if right else (k, n), b)),
        scale(d, parts),
        zero(d, b, parts),
        bias,
        *tail,
        domain=MICROSOFT,
        transA=left,
        transB=right,
        alpha=d.real(0.5, 2),
    )


def to_float(d: Draw) -> Node:
    """MatMulIntegerToFloat and DynamicQuantizeMatMul."""
    m, k, n = d.size(), d.size(1, 8), d.number(1, 6)
    lead = d.shape(0, 2, 1, 3)
    b = d.pick(BYTES)
    weight = d.either(d.values((k, n), b), data=0.2)
    parts = (n,) if d.chance() else ()
    point = zero(d, b, parts) if d.chance() else None
    bias = d.constant(d.values((n,))) if d.chance() else None
    if d.operator == "DynamicQuantizeMatMul":
        x = d.data(d.values((*lead, m, k)))
        return d.node(x, weight, scale(d, parts), point, bias, domain=MICROSOFT)
    a = d.pick(BYTES)
    x, zero_point = d.data(d.values((*lead, m, k), a)), zero(d, a) if d.chance() else None
    return d.node(x, weight, scale(d), scale(d, parts), zero_point, point, bias, domain=MICROSOFT)


def matmul_nbits(d: Draw) -> Node:
    bits, block = d.pick((4, 4, 8, 2)), d.pick((16, 32))
    n, k = d.number(1, 6), d.pick((16, 32, 40, 64))
    blocks = -(-k // block)
    weight = d.constant(d.indices((n, blocks, block * bits // 8), 0, 255, "uint8"))
    scales = d.constant(np.abs(d.values((n, blocks), "float32", 0.1)))
    points: Input | None = None
    if d.chance():
        points = d.constant(d.indices((n, -(-blocks * bits // 8)), 0, 255, "uint8"))
    bias = d.constant(d.values((n,))) if d.chance() else None
    x = d.data(d.values((*d.shape(1, 2, 1, 4), k)))
    return d.node(
        x, weight, scales, points, None, bias, domain=MICROSOFT, K=k, N=n, bits=bits, block_size=block
    )


MAKERS: dict[str, Maker] = {
    "QuantizeLinear": quantize,
    "DequantizeLinear": dequantize,
    "DynamicQuantizeLinear": dynamic_quantize,
    "MatMulInteger": matmul_integer,
    "QLinearMatMul": qlinear_matmul,
    "ConvInteger": conv_integer,
    "QLinearConv": qlinear_conv,
    "QLinearAdd": qlinear_binary,
    "QLinearMul": qlinear_binary,
    "QLinearLeakyRelu": qlinear_leaky,
    "QLinearSigmoid": partial(qlinear_unary, 1 / 256),
    "QLinearSoftmax": qlinear_softmax,
    "QLinearConcat": qlinear_concat,
    "QLinearAveragePool": qlinear_pool,
    "QLinearGlobalAveragePool": qlinear_pool,
    "QLinearWhere": qlinear_where,
    "QGemm": qgemm,
    "MatMulIntegerToFloat": to_float,
    "DynamicQuantizeMatMul": to_float,
    "MatMulNBits": matmul_nbits,
}
