"""Fixed-point arithmetic of LiteRT's integer kernels: a real factor is a multiplier of 31 bits and a shift.

A product with it is rounded twice, as these kernels do with two roundings: to a multiple of 2^-31 of the
multiplier, ties upwards, then by the shift, ties away from zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tflite
from tvm import relax, te, tirx
from tvm.ir import Expr

from kiln.arrays import Array
from kiln.frontend.tflite.operands import TfliteOperands, const

RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-(1 << 15), (1 << 15) - 1)}


@dataclass(frozen=True)
class Factor:
    """multiplier / 2^31 * 2^shift."""

    multiplier: int
    shift: int


def factor_of(value: float) -> Factor:
    """The factor nearest to `value`, which is not negative; 0 below 2^-32."""
    if value == 0:
        return Factor(0, 0)
    fraction, shift = math.frexp(value)
    multiplier = math.floor(fraction * 2.0**31 + 0.5)
    if multiplier == 1 << 31:
        multiplier, shift = 1 << 30, shift + 1
    return Factor(0, 0) if shift < -31 else Factor(multiplier, shift)


def ratio(numerator: float, denominator: float) -> float:
    """The quotient of two scales, rounded to float32 as LiteRT computes it."""
    return float(np.float32(numerator) / np.float32(denominator))


def range_of_activation(activation: int, scale: float, zero_point: int, dtype: str) -> tuple[int, int]:
    """The least and the greatest level of `dtype` that a fused activation leaves.

    Limits are rounded half away from zero, in float32. Raises NotImplementedError for an activation that is
    no limit.
    """
    kinds = tflite.ActivationFunctionType
    ranges = {
        kinds.NONE: (None, None),
        kinds.RELU: (0.0, None),
        kinds.RELU6: (0.0, 6.0),
        kinds.RELU_N1_TO_1: (-1.0, 1.0),
    }
    if activation not in ranges:
        names = {code: name for name, code in vars(kinds).items() if name.isupper()}
        raise NotImplementedError(f"fused activation {names.get(activation, activation)} on integers")
    info = np.iinfo(dtype)

    def level(real: float | None, otherwise: int) -> int:
        if real is None:
            return otherwise
        ratio = np.float32(real) / np.float32(scale)
        rounded = int(np.copysign(np.floor(np.abs(ratio) + np.float32(0.5)), ratio)) + int(zero_point)
        return min(max(rounded, info.min), info.max)

    low, high = ranges[activation]
    return level(low, int(info.min)), level(high, int(info.max))


def i32(value: int) -> Expr:
    """An int32 constant."""
    return tirx.IntImm("int32", value)


def high_product(a: Expr, b: Expr, more: Expr = None) -> Expr:
    """round((a b + c) / 2^31) of two int32, ties upwards. more: c + 2^30, int64; None: c is 0."""
    product = tirx.Cast("int64", a) * tirx.Cast("int64", b)
    added = tirx.IntImm("int64", 1 << 30) if more is None else more
    return tirx.Cast("int32", (product + added) >> tirx.IntImm("int64", 31))


def divided(x: Expr, bits: int | Expr, least: int = 0) -> Expr:
    """x / 2^bits of an int32, ties away from zero; `bits`: from `least`, 0 or 1, to 31."""
    if isinstance(bits, int):
        return x if bits == 0 else (x + (1 << (bits - 1)) + (x >> 31)) >> bits
    if least:
        return (x + (i32(1) << (bits - i32(1))) + (x >> i32(31))) >> bits
    any_bits = tirx.min(bits, i32(1))  # without a division nothing is rounded
    return (x + (any_bits << tirx.max(bits - i32(1), i32(0))) + (x >> i32(31)) * any_bits) >> bits


def times_short(x: Expr, factor: Factor, most: int) -> Expr:
    """x * factor of an int32 from -most - 1 to `most`, in 32 bits where these suffice."""
    left = max(0, factor.shift)
    if most << left >= 1 << 15:
        return times(x, factor)
    # The product by parts of 16 and 15 bits, without its lowest 15 bits.
    high, low = i32(factor.multiplier >> 15), i32(factor.multiplier & 0x7FFF)
    x = x << i32(left) if left else x
    product = x * high + (x * low >> i32(15))
    return divided((product + i32(1 << 15)) >> i32(16), max(0, -factor.shift))


def times(x: Expr, factor: Factor) -> Expr:
    """x * factor of an int32."""
    if factor.shift > 0:
        x = x << i32(factor.shift)
    return divided(high_product(x, i32(factor.multiplier)), max(0, -factor.shift))


def limited(x: Expr, dtype: str, limits: tuple[int, int] | None = None) -> Expr:
    """An int32 as the nearest number of `dtype` within `limits`."""
    low, high = limits or RANGES[dtype]
    return tirx.Cast(dtype, tirx.max(tirx.min(x, i32(high)), i32(low)))


def each_element(node: TfliteOperands, function: Callable[..., Expr], *tensors: Any, name: str) -> Any:
    """The tensor of `function` of the elements, as int32, of tensors of one shape."""

    def compute(*given: Any) -> Any:
        def element(*at: Expr) -> Expr:
            return function(*(tirx.Cast("int32", tensor(*at)) for tensor in given))

        return te.compute(given[0].shape, element, name=name)

    return node.emit_te(compute, *tensors, name=name)


@dataclass(frozen=True)
class ResultLevels:
    """The integers of a result; `limits`: the least and the greatest, None: those of `dtype`."""

    dtype: str
    zero: int = 0
    limits: tuple[int, int] | None = None


def rescaled(
    node: TfliteOperands,
    sums: Any,
    bias: Array,
    factors: list[Factor],
    levels: ResultLevels,
    more: Any = None,
) -> Any:
    """(sums + bias) * factor + zero point + more, as integers of `levels`.

    sums: int32, with the columns as its last axis. bias: one number for each column. factors: the columns
    are divided into as many equal parts, and each part has its factor. more: an integer tensor of the shape
    of `sums`. The bias is added to the products, in 64 bits, unless sums are shifted to the left before.
    """
    width = len(bias) // len(factors)
    shifts = np.repeat([factor.shift for factor in factors], width)
    multipliers = np.repeat([factor.multiplier for factor in factors], width)
    if bias.any() and shifts.max() > 0:
        sums, bias = node.bind(relax.op.add(sums, const(bias, "int32"))), np.zeros_like(bias)
    columns = {
        "multiplier": multipliers.astype("int32"),
        "right": np.maximum(-shifts, 0).astype("int8"),
        "left": np.maximum(shifts, 0).astype("int8"),
        "offset": bias.astype("int64") * multipliers + (1 << 30),
    }
    stored = [name for name, values in columns.items() if values.min() < values.max()]

    def compute(x: Any, *others: Any) -> Any:
        parts, added = dict(zip(stored, others, strict=False)), others[len(stored) :]

        def of(name: str, column: Expr) -> Expr:
            dtype = "int64" if columns[name].dtype == "int64" else "int32"
            value = parts[name](column) if name in parts else tirx.IntImm(dtype, int(columns[name][0]))
            return tirx.Cast(dtype, value)

        def element(*at: Expr) -> Expr:
            total = x(*at) << of("left", at[-1]) if shifts.max() > 0 else x(*at)
            total = high_product(total, of("multiplier", at[-1]), of("offset", at[-1]))
            right = of("right", at[-1]) if "right" in stored else int(columns["right"][0])
            total = divided(total, right, int(shifts.max() < 0))
            total = total + i32(levels.zero) if levels.zero else total
            for other in added:
                total = total + tirx.Cast("int32", other(*at))
            return limited(total, levels.dtype, levels.limits)

        return te.compute(x.shape, element, name="rescaled")

    tensors = [const(columns[name], str(columns[name].dtype)) for name in stored]
    return node.emit_te(compute, sums, *tensors, *([] if more is None else [more]), name="rescaled")
