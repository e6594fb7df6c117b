"""Operands of cases: drawn inputs, constants and filters of each type, and the results for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .files import Array, Operand, OperatorCase, Result

FLOAT, INT8, UINT8, INT16 = "float32", "int8", "uint8", "int16"
# Types of activations of operators with weights or windows, and of elementwise operators.
WEIGHTED = (FLOAT, INT8, UINT8, INT16)
TYPES = (*WEIGHTED, "int32", "int64")
# Strides and dilations of 1 of three axes.
STEPS_3D = dict.fromkeys(
    ("strideD", "strideW", "strideH", "dilationDFactor", "dilationWFactor", "dilationHFactor"), 1
)
# By quantised type: the scale and the zero point of inputs and outputs.
SCALES = {"int8": (0.05, 3), "uint8": (0.05, 130), "int16": (0.0005, 0)}


def draw(*shape: int, dtype: str = FLOAT, low: float = -3, high: float = 3, seed: int = 0) -> Array:
    """Drawn values: floats and integers between `low` and `high`, every value of quantised types."""
    generator = np.random.default_rng(seed + len(shape))
    if dtype == "bool":
        return generator.integers(0, 2, shape).astype(bool)
    if dtype in SCALES:
        info = np.iinfo(dtype)
        return generator.integers(info.min // 2, info.max // 2, shape).astype(dtype)
    if np.dtype(dtype).kind in "iu":
        return generator.integers(int(low), int(high) + 1, shape).astype(dtype)
    return generator.uniform(low, high, shape).astype(dtype)


def data(*shape: int, dtype: str = FLOAT, low: float = -3, high: float = 3, seed: int = 0) -> Operand:
    """An input of the graph; of a quantised type with the scale of that type."""
    scale, zero = SCALES.get(dtype, (None, 0))
    return Operand(draw(*shape, dtype=dtype, low=low, high=high, seed=seed), False, scale, zero)


def held(values: Any, dtype: str = "int32", scale: Any = None, zero: int = 0) -> Operand:
    """A constant of the file."""
    return Operand(np.array(values, dtype), True, scale, zero)


def result(dtype: str = FLOAT, factor: float = 1.0) -> Result:
    """An output of a type, with the scale of that type times `factor`."""
    scale, zero = SCALES.get(dtype, (None, 0))
    return Result(dtype, None if scale is None else scale * factor, zero)


def case(
    operator: str, what: str, operands: Sequence[Operand | None], results: Sequence[Result], table: str = "",
    **given: Any,
) -> OperatorCase:  # fmt: skip
    """One case; `given`: fields of the options, and with a trailing _ those of OperatorCase."""
    fields_of_case = {key.rstrip("_"): value for key, value in given.items() if key.endswith("_")}
    options = {key: value for key, value in given.items() if not key.endswith("_")}
    return OperatorCase(f"{operator}/{what}", operator, operands, results, options, table, **fields_of_case)


def filter_of(*shape: int, dtype: str, axis: int = 0, per_channel: bool = True) -> Operand:
    """A constant filter: floats, or int8 with a scale per channel (uint8: one scale)."""
    if dtype == FLOAT:
        return Operand(draw(*shape, low=-1, high=1, seed=11), True)
    stored = UINT8 if dtype == UINT8 else INT8
    values = np.random.default_rng(5).integers(-127, 128, shape)
    if stored == UINT8:
        return Operand((values + 128).astype(UINT8), True, 0.01, 128)
    scales = list(np.linspace(0.005, 0.02, shape[axis])) if per_channel else 0.01
    return Operand(values.astype(INT8), True, scales, 0, axis)


def bias(count: int, dtype: str, weights: Operand) -> Operand:
    """A constant bias of `count` channels for inputs of `dtype`; integers with the scales of the sums."""
    if dtype == FLOAT:
        return Operand(draw(count, seed=2), True)
    scale = SCALES[dtype][0]
    scales = (
        [scale * s for s in weights.scale]
        if isinstance(weights.scale, list)
        else scale * float(weights.scale or 1)
    )
    values = np.random.default_rng(2).integers(-300, 300, count)
    return Operand(values.astype("int64" if dtype == INT16 else "int32"), True, scales, 0)
