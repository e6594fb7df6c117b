"""Products of int16 activations in the integers of LiteRT's kernels, the same bit for bit.

The weights are of int8, or a second tensor of int16; all zero points are 0. LiteRT adds the products and a
bias of int64 up in 64 bits, and multiplies the sum by a factor of 15 bits with one rounding, ties upwards.
With a bias of int32 it multiplies as for int8. Here sums have 32 bits where the magnitudes of each channel's
weights times 2^15 prove that they fit: the result is the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from kiln.arrays import Array
from kiln.frontend.tflite.fixed_point import (
    RANGES,
    Factor,
    ResultLevels,
    factor_of,
    range_of_activation,
    rescaled,
)
from kiln.frontend.tflite.operands import TfliteOperands, const

op = relax.op
_MOST = {"int16": 1 << 15, "int8": 1 << 7}  # the greatest magnitude of a value
_MOST_32, _MOST_64 = (1 << 31) - 1, 1 << 62
_WORD_SHIFTS = range(17, 48)  # the shifts for which 32-bit integers suffice


@dataclass(frozen=True)
class Products:
    """How an operator multiplies activations by weights.

    sums(weights, dtype): emits the sums of products in `dtype`, with one index of the last axis for each
    output. ordered: the weights, an array or an expression, in the order of axes that `sums` reads, with the
    outputs as axis `output_axis`. terms: number of products in a sum. bias, data: the inputs with the bias
    and with the activations. activation: code of the fused activation. real: whether LiteRT's kernel
    multiplies sums by real numbers, not by factors of 15 bits.
    """

    sums: Callable[[Any, str], Any]
    ordered: Callable[[Any], Any]
    terms: int
    bias: int = 2
    activation: int = 0
    data: int = 0
    real: bool = False
    output_axis: int = -1


def transposed(weights: Any, axes: Sequence[int]) -> Any:
    """Weights, an array or an expression, with their axes in another order."""
    return weights.transpose(axes) if isinstance(weights, np.ndarray) else op.permute_dims(weights, axes)


def reshaped(weights: Any, shape: Sequence[int]) -> Any:
    """Weights, an array or an expression, in another shape."""
    return weights.reshape(shape) if isinstance(weights, np.ndarray) else op.reshape(weights, shape)


def multiplies_int16(node: TfliteOperands, data: int = 0) -> bool:
    """Whether an operator multiplies int16, its input `data`, by weights of int8, without zero points."""
    if (node.dtype(data), node.dtype(1), node.result_dtype()) != ("int16", "int8", "int16"):
        return False
    params = [tensor.qnn_params for tensor in (node.inputs[data], node.inputs[1], node.outputs[0])]
    return all(each is not None and not np.any(each["zero_point"].value.numpy()) for each in params)


def int16_products(node: TfliteOperands, products: Products) -> Any:
    """The int16 result of `node`, for which `multiplies_int16` holds; `products` describes its sums."""
    stored = node.array(1)
    if stored is None:
        weights, most = node.bind(products.ordered(node.raw(1))), products.terms * _MOST["int8"]
    else:
        values = np.ascontiguousarray(products.ordered(stored))
        weights = const(values, "int8")
        of_outputs = np.moveaxis(np.abs(values.astype("int64")), products.output_axis, 0)
        most = int(of_outputs.reshape(len(of_outputs), -1).sum(1).max(initial=0))
    most *= _MOST["int16"]
    has_bias = node.has(products.bias)
    narrow_bias = has_bias and node.dtype(products.bias) == "int32"
    sums = node.bind(products.sums(weights, "int32" if most <= _MOST_32 or narrow_bias else "int64"))
    ratios = _ratios(node, products, int(sums.ty.shape[-1]))
    scale, zero = (_numbers(node.outputs[0], key).item() for key in ("scale", "zero_point"))
    limits = range_of_activation(products.activation, scale, zero, "int16")
    factors = [factor_of(ratio) for ratio in ratios]
    if narrow_bias and not products.real:
        return _scaled_as_int8(node, sums, products.bias, factors, limits)
    if has_bias:
        sums, most = _with_bias(node, sums, products.bias, most)
    if products.real:
        return _scaled_by_real(node, sums, np.array(ratios), limits, most)
    return scaled(node, sums, factors, limits, most)


def int16_matmul(node: TfliteOperands, left: Any, right: Any) -> Any:
    """The int16 result of BATCH_MATMUL: `left` is input 0 and `right` input 1, with their axes in order.

    The two scales are multiplied in float32, as in LiteRT's kernel.
    """
    sums = node.bind(op.matmul(left, right, out_dtype="int64"))
    data, other, result = (
        np.float32(_numbers(tensor, "scale").item())
        for tensor in (node.inputs[0], node.inputs[1], node.outputs[0])
    )
    most = int(left.ty.shape[-1]) * _MOST["int16"] ** 2
    return scaled(node, sums, [factor_of(float(data * other) / float(result))], RANGES["int16"], most)


def _numbers(tensor: Any, key: str) -> Array:
    return np.asarray(tensor.qnn_params[key].value.numpy()).reshape(-1)


def _ratios(node: TfliteOperands, products: Products, columns: int) -> list[float]:
    """The factor from sums to the result's levels, for each output or one for all, as real numbers."""
    data, weights, result = (
        _numbers(tensor, "scale").astype("float64")
        for tensor in (node.inputs[products.data], node.inputs[1], node.outputs[0])
    )
    ratios: list[float] = (data * weights / result).tolist()
    if len(ratios) not in (1, columns):
        raise ValueError(f"{len(ratios)} scales of weights, allowed: 1 or {columns}, one for each output")
    return ratios


def _with_bias(node: TfliteOperands, sums: Any, index: int, most: int) -> tuple[Any, int]:
    """The sums plus the bias in input `index`, and the greatest magnitude that the results can have.

    most: the greatest magnitude of the sums.
    """
    values = node.array(index)
    if values is None:
        wide = node.bind(op.astype(sums, "int64"))
        return node.bind(op.add(wide, node.bind(op.astype(node.raw(index), "int64")))), _MOST_64
    largest = int(np.abs(values.astype("int64")).max(initial=0))
    kind = str(sums.ty.dtype)
    if kind == "int32" and most + largest > _MOST_32:
        kind, sums = "int64", node.bind(op.astype(sums, "int64"))
    return node.bind(op.add(sums, const(values, kind))), most + largest


def _scaled_as_int8(
    node: TfliteOperands, sums: Any, bias: int, factors: list[Factor], limits: tuple[int, int]
) -> Any:
    """The sums plus the int32 bias in input `bias`, scaled with two roundings, as int16."""
    values = node.array(bias)
    if values is None:
        sums, values = node.bind(op.add(sums, node.raw(bias))), np.zeros(int(sums.ty.shape[-1]), "int32")
    return rescaled(node, sums, values.reshape(-1), factors, ResultLevels("int16", limits=limits))


def scaled(node: TfliteOperands, sums: Any, factors: list[Factor], limits: tuple[int, int], most: int) -> Any:
    """The sums, of int32 or int64, times the factors in 15 bits, as int16 within `limits`.

    factors: one, or one for each index of the last axis. most: greatest magnitude of a sum.
    """
    multipliers = np.array([min((factor.multiplier + (1 << 15)) >> 16, 0x7FFF) for factor in factors])
    shifts = np.array([15 - factor.shift if factor.multiplier else 17 for factor in factors])
    if shifts.min() < 1:
        raise ValueError("its result has a scale too small for its operands, allowed: a ratio below 2^14")
    in_words = str(sums.ty.dtype) == "int32" and all(int(shift) in _WORD_SHIFTS for shift in shifts)
    common = int(shifts.max())
    raised = multipliers << (common - shifts)
    if in_words:
        parts, compute = [multipliers, shifts - 17], _in_words
    elif raised.max() <= _MOST_32 and (most + 1) * int(raised.max()) < _MOST_64:  # one shift for all
        parts, compute = [raised, np.full_like(shifts, common)], _in_64_bits
    else:
        parts, compute = [multipliers, shifts], _in_64_bits
    kind = "int32" if in_words else "int64"
    multiplier, shift = (_of_columns(part, kind) for part in parts)
    value = compute(node, sums, multiplier, shift)
    return narrowed(node, value, limits)


def _of_columns(values: Array, kind: str) -> Any:
    """A constant of one number for all outputs where they are equal, else of one for each."""
    return const(values[0] if (values == values[0]).all() else values, kind)


def _scaled_by_real(
    node: TfliteOperands, sums: Any, ratios: Array, limits: tuple[int, int], most: int
) -> Any:
    """The sums times real numbers, ties away from zero, as int16 within `limits`: by 31 bits of the largest.

    ratios: one, or one for each index of the last axis. most: greatest magnitude of a sum; those whose
    results are beyond int16 are limited where the product would need over 62 bits.
    """
    enough = math.ceil(2.0**17 / max(ratios.min(), 2.0**-44))
    bits = min(31, 62 - min(most, enough).bit_length())
    shift = min(bits - math.frexp(ratios.max())[1], 62)
    if shift < 1:
        raise ValueError("its result has a scale too small for its operands, allowed: a ratio below 2^14")
    wide = node.emit(op.astype(sums, "int64"))
    if most.bit_length() > 31 and enough < most:
        wide = node.emit(op.maximum(node.emit(op.minimum(wide, _int64(enough))), _int64(-enough)))
    below = node.emit(op.right_shift(wide, _int64(63)))  # -1 for a negative sum
    multiplier = _of_columns(np.minimum(np.round(ratios * 2.0**shift), (1 << bits) - 1), "int64")
    half = node.emit(op.add(below, _int64(1 << (shift - 1))))
    product = node.emit(op.add(node.emit(op.multiply(wide, multiplier)), half))
    return narrowed(node, op.right_shift(product, _int64(shift)), limits)


def _int64(value: int) -> Any:
    return const(value, "int64")


def narrowed(node: TfliteOperands, value: Any, limits: tuple[int, int]) -> Any:
    """Integers as int16 within `limits`."""
    value = node.emit(value)
    low, high = (const(limit, str(value.ty.dtype)) for limit in limits)
    value = node.emit(op.maximum(node.emit(op.minimum(value, high)), low))
    return op.astype(value, "int16")


def _in_words(node: TfliteOperands, x: Any, multiplier: Any, shift: Any) -> Any:
    """round(x multiplier / 2^(17 + shift)), ties upwards, of an int32 and a multiplier of 15 bits.

    The product less its last 16 bits is that of the upper half of x plus part of that of the lower half.
    """
    emit, half = node.emit, const(16, "int32")
    low = emit(op.multiply(emit(op.bitwise_and(x, const(0xFFFF, "int32"))), multiplier))
    upper = emit(op.multiply(emit(op.right_shift(x, half)), multiplier))
    product = emit(op.add(upper, emit(op.right_shift(low, half))))
    twice = emit(op.add(emit(op.right_shift(product, shift)), const(1, "int32")))
    return op.right_shift(twice, const(1, "int32"))


def _in_64_bits(node: TfliteOperands, x: Any, multiplier: Any, shift: Any) -> Any:
    """round(x multiplier / 2^shift), ties upwards, of an int64."""
    half = const(1 << (shift.value.numpy().astype("int64") - 1), "int64")
    product = node.emit(op.multiply(node.emit(op.astype(x, "int64")), multiplier))
    return op.right_shift(node.emit(op.add(product, half)), shift)
