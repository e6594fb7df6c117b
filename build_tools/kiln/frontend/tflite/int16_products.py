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
from tvm import relax, te, tirx

from kiln.arrays import Array
from kiln.frontend.tflite.fixed_point import (
    RANGES,
    Factor,
    factor_of,
    i32,
    limited,
    range_of_activation,
    rescaled,
)
from kiln.frontend.tflite.operands import TfliteOperands, const

op = relax.op
Expr = Any
_MOST = {"int16": 1 << 15, "int8": 1 << 7}  # of a magnitude
_MOST_32, _MOST_64 = (1 << 31) - 1, 1 << 62
_WORD_SHIFTS = range(17, 48)  # of scalings on 32-bit integers


@dataclass(frozen=True)
class Products:
    """An operator with weights.

    sums: emits the sums of products with weights, of a type, outputs last. ordered: the weights as it wants
    them, of an array or an expression, with the outputs as `output_axis`. terms: products in a sum. bias: its
    input. activation: code of the fused one. data: input with the activations. real: whether LiteRT's kernel
    multiplies sums by real numbers.
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


def int16_products(node: TfliteOperands, of: Products) -> Any:
    """The result of an operator for which `multiplies_int16` holds, as it is stored."""
    stored = node.array(1)
    if stored is None:
        weights, most = node.bind(of.ordered(node.raw(1))), of.terms * _MOST["int8"]
    else:
        values = np.ascontiguousarray(of.ordered(stored))
        weights = const(values, "int8")
        of_outputs = np.moveaxis(np.abs(values.astype("int64")), of.output_axis, 0)
        most = int(of_outputs.reshape(len(of_outputs), -1).sum(1).max(initial=0))
    most *= _MOST["int16"]
    has_bias = node.has(of.bias)
    narrow_bias = has_bias and node.dtype(of.bias) == "int32"
    sums = node.bind(of.sums(weights, "int32" if most <= _MOST_32 or narrow_bias else "int64"))
    ratios = _ratios(node, of, int(sums.ty.shape[-1]))
    scale, zero = (_numbers(node.outputs[0], key).item() for key in ("scale", "zero_point"))
    limits = range_of_activation(of.activation, scale, zero, "int16")
    factors = [factor_of(ratio) for ratio in ratios]
    if narrow_bias and not of.real:
        return _scaled_as_int8(node, sums, of.bias, factors, limits)
    if has_bias:
        sums, most = _with_bias(node, sums, of.bias, most)
    if of.real:
        return _scaled_by_real(node, sums, np.array(ratios), limits, most)
    return scaled(node, sums, factors, limits, most)


def int16_matmul(node: TfliteOperands, left: Any, right: Any) -> Any:
    """The product of two tensors of int16, of inputs 0 and 1, as BATCH_MATMUL stores it.

    LiteRT's kernel multiplies their scales in float32.
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


def _ratios(node: TfliteOperands, of: Products, columns: int) -> list[float]:
    """The real factor of each output's sums, or one for all."""
    data, weights, result = (
        _numbers(tensor, "scale").astype("float64")
        for tensor in (node.inputs[of.data], node.inputs[1], node.outputs[0])
    )
    ratios: list[float] = (data * weights / result).tolist()
    if len(ratios) not in (1, columns):
        raise ValueError(f"{len(ratios)} scales of weights, allowed: 1 or {columns}, one for each output")
    return ratios


def _with_bias(node: TfliteOperands, sums: Any, index: int, most: int) -> tuple[Any, int]:
    """The sums with a bias of int64, and their greatest magnitude."""
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
    """The sums with a bias of int32, scaled with two roundings."""
    values = node.array(bias)
    if values is None:
        sums, values = node.bind(op.add(sums, node.raw(bias))), np.zeros(int(sums.ty.shape[-1]), "int32")
    return rescaled(node, sums, values.reshape(-1), factors, "int16", limits=limits)


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
        parts, compute = [multipliers.astype("int16"), (shifts - 17).astype("int8")], _in_words
    elif raised.max() <= _MOST_32 and (most + 1) * int(raised.max()) < _MOST_64:  # one shift for all
        parts, compute = [raised.astype("int32"), np.full(shifts.shape, common, "int8")], _in_64_bits
    else:
        parts, compute = [multipliers.astype("int16"), shifts.astype("int8")], _in_64_bits
    kind = "int32" if in_words else "int64"
    alike = [bool((part == part[0]).all()) for part in parts]
    tensors = [const(part, str(part.dtype)) for part, same in zip(parts, alike, strict=True) if not same]

    def body(x: Any, *columns: Any) -> Any:
        def element(*at: Expr) -> Expr:
            rest = iter(columns)
            multiplier, shift = (
                tirx.IntImm(kind, int(part[0])) if same else tirx.Cast(kind, next(rest)(at[-1]))
                for part, same in zip(parts, alike, strict=True)
            )
            value = compute(x(*at), multiplier, shift)
            return limited(value, "int16", limits) if in_words else _narrowed(value, limits)

        return te.compute(x.shape, element, name="scaled")

    return node.emit_te(body, sums, *tensors, name="scaled")


def _scaled_by_real(
    node: TfliteOperands, sums: Any, ratios: Array, limits: tuple[int, int], most: int
) -> Any:
    """The sums times real numbers, ties away from zero, as int16 within `limits`: by 31 bits of the largest.

    ratios: one, or one for each index of the last axis. most: greatest magnitude of a sum; those whose
    results are beyond int16 are limited where the product would need over 62 bits.
    """
    enough = math.ceil(2.0**17 / max(ratios.min(), 2.0**-44))
    is_limited = most.bit_length() > 31 and enough < most
    bits = min(31, 62 - min(most, enough).bit_length())
    shift = min(bits - math.frexp(ratios.max())[1], 62)
    if shift < 1:
        raise ValueError("its result has a scale too small for its operands, allowed: a ratio below 2^14")
    multipliers = np.minimum(np.round(ratios * 2.0**shift), (1 << bits) - 1).astype("int32")
    alike = bool((multipliers == multipliers[0]).all())
    half, end = (tirx.IntImm("int64", number) for number in (1 << (shift - 1), enough))

    def body(x: Any, *columns: Any) -> Any:
        def element(*at: Expr) -> Expr:
            wide = tirx.Cast("int64", x(*at))
            if is_limited:
                wide = tirx.max(tirx.min(wide, end), -end)
            below = wide >> tirx.IntImm("int64", 63)  # -1 for a negative sum
            one = tirx.IntImm("int64", int(multipliers[0]))
            multiplier = one if alike else tirx.Cast("int64", columns[0](at[-1]))
            return _narrowed((wide * multiplier + half + below) >> tirx.IntImm("int64", shift), limits)

        return te.compute(x.shape, element, name="scaled")

    tensors = [] if alike else [const(multipliers, "int32")]
    return node.emit_te(body, sums, *tensors, name="scaled")


def _narrowed(wide: Expr, limits: tuple[int, int]) -> Expr:
    """An int64 as int16 within `limits`."""
    low, high = (tirx.IntImm("int64", limit) for limit in limits)
    return tirx.Cast("int16", tirx.max(tirx.min(wide, high), low))


def _in_words(x: Expr, multiplier: Expr, shift: Expr) -> Expr:
    """round(x multiplier / 2^(17 + shift)), ties upwards, of an int32 and a multiplier of 15 bits.

    The product less its last 16 bits is that of the upper half of x plus part of that of the lower half.
    """
    low = ((x & i32(0xFFFF)) * multiplier) >> i32(16)
    upper = (x >> i32(16)) * multiplier + low
    return ((upper >> shift) + i32(1)) >> i32(1)


def _in_64_bits(x: Expr, multiplier: Expr, shift: Expr) -> Expr:
    """round(x multiplier / 2^shift), ties upwards, of an int64."""
    one = tirx.IntImm("int64", 1)
    return (tirx.Cast("int64", x) * multiplier + (one << (shift - one))) >> shift
