"""MatMulInteger, ConvInteger and ONNX Runtime's operators that contain them.

With x, w of 8 bits and zero points zx, zw the sum over k of (x - zx) (w - zw) is

    sum x w - zx sum w - zw sum x + K zx zw

so that the 8-bit kernels compute the first term, and the others are one number per row or column. Weights of
uint8 are stored as w - 128 in int8, which changes zw by the same amount. All sums are exact in int32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from kiln.frontend.onnx import quantised_lstm
from kiln.frontend.onnx.body import Body, Expansion
from kiln.frontend.onnx.quantise_ops import check_scale, check_zero_point, dynamic_quantize

op = relax.op


def _int32(body: Body, name: str) -> Any:
    return op.astype(body.tensor(name), "int32")


def signed_weights(body: Body, weights: str, zero: str) -> tuple[str, str, bool]:
    """Constant 8-bit weights as int8, their zero point as int32 (empty: 0), and whether they are constant."""
    value = body.constant(weights)
    if value is None or value.dtype not in (np.int8, np.uint8):
        return weights, zero, False
    shift = 128 if value.dtype == np.uint8 else 0
    point = body.constant(zero) if zero else np.zeros((), "int32")
    signed = body.const((value.astype("int32") - shift).astype("int8"))
    if point is not None:
        shifted = point.astype("int32") - shift
        return signed, body.const(shifted) if np.any(shifted) else "", True
    unshifted = _int32(body, zero) if zero else relax.const(0, "int32")
    return signed, body.bind(op.subtract(unshifted, relax.const(shift, "int32"))), True


def _zero_points_of_rows(body: Body, zero: str, rank: int) -> Any:
    """A zero point of rows, a scalar or one per row, as int32 that broadcasts against the product."""
    shape = body.shape(zero)
    point = _int32(body, zero)
    if all(size == 1 for size in shape):
        return op.reshape(point, [])
    return op.reshape(point, [*shape, 1]) if len(shape) == 1 and rank > 1 else point


def _zero_points_of_columns(body: Body, zero: str) -> Any:
    """A zero point of columns, a scalar or one per column, as int32."""
    if all(size == 1 for size in body.shape(zero)):
        return op.reshape(_int32(body, zero), [])
    return _int32(body, zero)


def integer_product(body: Body, left: str, right: str, left_zero: str, right_zero: str) -> str:
    """(left - left_zero) @ (right - right_zero) in int32; an omitted zero point is the empty name."""
    for zero, data in ((left_zero, left), (right_zero, right)):
        if zero:
            check_zero_point(body, zero, data)
    weights, point, fixed = signed_weights(body, right, right_zero)
    if not fixed or body.rank(weights) != 2 or body.rank(left) < 2:
        a, b = _int32(body, left), _int32(body, right)
        if left_zero:
            a = op.subtract(a, _zero_points_of_rows(body, left_zero, body.rank(left)))
        if right_zero:
            b = op.subtract(b, _zero_points_of_columns(body, right_zero))
        return body.bind(op.matmul(a, b, out_dtype="int32"))
    value = body.constant(weights)
    assert value is not None
    x = body.tensor(left)
    total = op.matmul(x, body.tensor(weights), out_dtype="int32")
    if point:  # by row: sum x, less K zx
        rows = op.sum(op.astype(x, "int32"), -1, keepdims=True)
        if left_zero:
            depth = relax.const(value.shape[0], "int32")
            rows = op.subtract(
                rows, op.multiply(_zero_points_of_rows(body, left_zero, body.rank(left)), depth)
            )
        rows = body.tensor(body.bind(rows))
        total = op.subtract(total, op.multiply(rows, _zero_points_of_columns(body, point)))
    if left_zero:
        sums = relax.const(value.astype("int32").sum(axis=0, dtype="int32"), "int32")
        total = op.subtract(total, op.multiply(_zero_points_of_rows(body, left_zero, body.rank(left)), sums))
    return body.bind(total)


def matmul_integer(body: Body) -> list[str]:
    """MatMulInteger."""
    return [integer_product(body, *(body.input(index) for index in range(4)))]


def _to_float(body: Body, product: str, a_scale: str, b_scale: str, bias: str) -> str:
    """product * a_scale * b_scale + bias in float32; the scales are scalars, b_scale also one per column."""
    check_scale(body, a_scale)
    check_scale(body, b_scale, of_weights=True)
    factors = [
        body.tensor(name)
        if any(size != 1 for size in body.shape(name))
        else op.reshape(body.tensor(name), [])
        for name in (a_scale, b_scale)
    ]
    factor = body.tensor(body.bind(op.multiply(*factors)))
    real = op.multiply(op.astype(body.tensor(product), "float32"), factor)
    return body.bind(op.add(real, body.tensor(bias)) if bias else real)


def product_to_float(
    body: Body, data: str, weights: str, scales: tuple[str, str], zeros: tuple[str, str], bias: str
) -> str:
    """The product of quantised tensors, dequantised, plus a bias in float32 (empty: none)."""
    total = integer_product(body, data, weights, *zeros)
    return _to_float(body, total, *scales, bias)


def matmul_integer_to_float(body: Body) -> list[str]:
    """com.microsoft.MatMulIntegerToFloat."""
    a, b, a_scale, b_scale, a_zero, b_zero, bias = (body.input(index) for index in range(7))
    return [product_to_float(body, a, b, (a_scale, b_scale), (a_zero, b_zero), bias)]


def dynamic_quantize_matmul(body: Body) -> list[str]:
    """com.microsoft.DynamicQuantizeMatMul."""
    a, b, b_scale, b_zero, bias = (body.input(index) for index in range(5))
    data, scale, zero = dynamic_quantize(body, a)
    return [product_to_float(body, data, b, (scale, b_scale), (zero, b_zero), bias)]


def dynamic_quantize_lstm(body: Body) -> list[str]:
    """com.microsoft.DynamicQuantizeLSTM, where it has not become a Scan (quantised_lstm.py), is refused."""
    raise ValueError(quantised_lstm.obstacle(body.node))


ONNX: dict[str, Expansion] = {"MatMulInteger": matmul_integer}
MICROSOFT: dict[str, Expansion] = {
    "DynamicQuantizeLSTM": dynamic_quantize_lstm,
    "DynamicQuantizeMatMul": dynamic_quantize_matmul,
    "MatMulIntegerToFloat": matmul_integer_to_float,
}
