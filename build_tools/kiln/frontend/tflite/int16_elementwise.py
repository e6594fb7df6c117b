"""Sums, products, means, roots of int16, squared differences and rescalings of 8 bits, in LiteRT's integers.

Results are those of its portable kernels bit for bit. Zero points of int16 are 0; a factor is a ratio of
scales in float32, of which LiteRT makes a multiplier of 31 bits and a shift. SQRT is computed in floats there
and rounded towards zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.ir import Expr

from kiln.frontend.tflite.fixed_point import (
    RANGES,
    Factor,
    each_element,
    factor_of,
    i32,
    limited,
    range_of_activation,
    ratio,
    times,
    times_short,
)
from kiln.frontend.tflite.int16_products import narrowed
from kiln.frontend.tflite.interpolated_tables import int16_grids
from kiln.frontend.tflite.operands import Grid, TfliteOperands

op = relax.op
_MOST = (1 << 15) - 1
_SUM_BITS = 15  # that LiteRT moves the operands of a sum to the left
_DIFFERENCE_BITS = 7  # and those of a squared difference


def absolute(node: TfliteOperands) -> Any:
    """ABS of int16; TVM converts other types."""
    grids = int16_grids(node)
    if grids is None:
        return None
    scale, unit = (np.float32(grid.scale) for grid in grids)
    if scale == unit:
        wide = node.bind(op.abs(node.bind(op.astype(node.raw(0), "int32"))))
        return narrowed(node, wide, (0, _MOST))
    factor = factor_of(ratio(scale, unit))
    return each_element(
        node, lambda x: limited(times(tirx.abs(x), factor), "int16"), node.raw(0), name="absolute"
    )


def addition(sign: int) -> Callable[[TfliteOperands], Any]:
    """A converter of ADD (1) or SUB (-1) of int16; None of other types, which TVM converts.

    Each operand is moved 15 bits to the left and multiplied by its scale over twice the greater one.
    """

    def convert(node: TfliteOperands) -> Any:
        grids, other = int16_grids(node), node.grid(1)
        if grids is None or other is None or (other.dtype, other.zero) != ("int16", 0):
            return None
        options = node.options("AddOptions" if sign > 0 else "SubOptions")
        scales = [grid.scale for grid in (grids[0], other)]
        unit = grids[1].scale
        if options.PotScaleInt16() and all(_is_power_of_two(scale) for scale in (*scales, unit)):
            return None
        twice = float(np.float32(2) * np.float32(max(scales)))
        total_factor = factor_of(twice / float(np.float32(1 << _SUM_BITS) * np.float32(unit)))
        if total_factor.shift > 0:
            return None
        factors = [factor_of(float(np.float32(scale)) / twice) for scale in scales]
        first, second = (
            each_element(node, _in_sum(factor), node.raw(index), name="operand")
            for index, factor in enumerate(factors)
        )
        total = node.bind(op.add(first, second) if sign > 0 else op.subtract(first, second))
        limits = range_of_activation(options.FusedActivationFunction(), unit, 0, "int16")
        return each_element(
            node, lambda x: limited(times(x, total_factor), "int16", limits), total, name="rescaled"
        )

    return convert


def _scaled_sum(node: TfliteOperands, x: Any, factor: Factor, limits: tuple[int, int]) -> Any:
    return each_element(node, lambda v: limited(times(v, factor), "int16", limits), x, name="rescaled")


def _in_sum(factor: Factor) -> Callable[[Expr], Expr]:
    return lambda x: times(x << i32(_SUM_BITS), factor)


def multiplication(node: TfliteOperands) -> Any:
    """MUL of int16; TVM converts other types."""
    grids, other = int16_grids(node), node.grid(1)
    if grids is None or other is None or (other.dtype, other.zero) != ("int16", 0):
        return None
    unit = grids[1].scale
    factor = factor_of(ratio(np.float32(grids[0].scale) * np.float32(other.scale), unit))
    activation = node.options("MulOptions").FusedActivationFunction()
    limits = range_of_activation(activation, unit, 0, "int16")
    first, second = (node.bind(op.astype(node.raw(index), "int32")) for index in (0, 1))
    product = node.bind(op.multiply(first, second))
    return _scaled_sum(node, product, factor, limits)


def squared_difference(node: TfliteOperands) -> Any:
    """SQUARED_DIFFERENCE of int8, the only quantised type that LiteRT has a kernel for; else None.

    Each operand is moved 7 bits to the left and multiplied by its scale over twice the greater one.
    """
    grids, result = [node.grid(index) for index in (0, 1)], node.result_grid()
    if result is None or any(grid is None or grid.dtype != "int8" for grid in (*grids, result)):
        return None
    operands = [grid for grid in grids if grid is not None]
    twice = 2 * max(float(np.float32(grid.scale)) for grid in operands)
    square_factor = factor_of(
        twice * twice / float(np.float32(1 << 2 * _DIFFERENCE_BITS) * np.float32(result.scale))
    )
    if square_factor.shift > 0:
        return None

    def scaled(grid: Grid) -> Callable[[Expr], Expr]:
        factor = factor_of(float(np.float32(grid.scale)) / twice)
        return lambda x: times((x - i32(grid.zero)) << i32(_DIFFERENCE_BITS), factor)

    first, second = (
        each_element(node, scaled(grid), node.raw(index), name="operand")
        for index, grid in enumerate(operands)
    )
    difference = node.bind(op.subtract(first, second))

    def square(x: Expr) -> Expr:
        return limited(times(x * x, square_factor) + i32(result.zero), "int8")

    return each_element(node, square, difference, name="square")


def requantised(node: TfliteOperands) -> Any:
    """QUANTIZE of 8 or 16 bits to another scale, also of another type; other types: `computing_ops`.

    None, too, for one scale, with which there is nothing to round, and for ratios for which LiteRT's shift
    may overflow.
    """
    source, result = node.grid(0), node.result_grid()
    if source is None or result is None or source.dtype not in RANGES or result.dtype not in RANGES:
        return None
    if source.scale == result.scale and (source.dtype != "int16" or result.dtype == "int16"):
        return None
    factor = factor_of(float(np.float32(source.scale)) / float(np.float32(result.scale)))
    low, high = RANGES[source.dtype]
    most = max(high - source.zero, source.zero - low - 1)
    if (most + 1) << max(0, factor.shift) >= 1 << 31:
        return None

    def element(x: Expr) -> Expr:
        level = x - i32(source.zero) if source.zero else x
        scaled = times_short(level, factor, most)
        return limited(scaled + i32(result.zero) if result.zero else scaled, result.dtype)

    return each_element(node, element, node.raw(0), name="requantised")


def _is_power_of_two(scale: float) -> bool:
    power = math.log2(scale)
    return abs(power - round(power)) < 1e-3


def mean(node: TfliteOperands) -> Any:
    """MEAN of int16 by a multiplier that is divided by the number of terms; other types: `computing_ops`.

    None, too, for as many terms as may overflow sums of 32 bits.
    """
    grids = int16_grids(node)
    if grids is None:
        return None
    shape = node.shape(0)
    axes = sorted({int(axis) % len(shape) for axis in node.constant_array(1).reshape(-1)})
    count = math.prod(shape[axis] for axis in axes)
    if not 0 < count < 1 << 16:
        return None
    factor = factor_of(float(np.float32(grids[0].scale)) / float(np.float32(grids[1].scale)))
    shift = min(count.bit_length() - 1, 31 + factor.shift)
    mean_factor = Factor((factor.multiplier << shift) // count, factor.shift - shift)
    keep = bool(node.options("ReducerOptions").KeepDims())
    sums = node.bind(op.sum(node.bind(op.astype(node.raw(0), "int32")), axes, keepdims=keep))
    return each_element(node, lambda x: limited(times(x, mean_factor), "int16"), sums, name="mean")


def square_root(node: TfliteOperands) -> Any:
    """SQRT of int16, rounded down, bit by bit; TVM converts other types. The root of a negative number is 0.

    A root that is nearly a level may be rounded otherwise than with LiteRT's floats.
    """
    grids = int16_grids(node)
    if grids is None:
        return None
    exact = grids[0].scale / grids[1].scale ** 2
    shift = 31 - math.frexp(exact)[1]
    if not 0 <= shift <= 62:
        return None
    multiplier = round(exact * 2.0**shift)

    def square(x: Expr) -> Expr:
        wide = tirx.Cast("int64", tirx.max(x, i32(0))) * tirx.IntImm("int64", multiplier)
        wide = tirx.min(wide >> tirx.IntImm("int64", shift), tirx.IntImm("int64", (1 << 30) - 1))
        return tirx.Cast("int32", wide)

    squares = each_element(node, square, node.raw(0), name="square")
    root = op.zeros_like(squares)
    for bit in reversed(range(15)):
        root = each_element(node, _with_bit(bit), node.bind(root), squares, name="root")
    return op.astype(root, "int16")


def _with_bit(bit: int) -> Callable[[Expr, Expr], Expr]:
    """The root with one more bit, if its square is not above the number."""

    def element(root: Expr, square: Expr) -> Expr:
        more = root + i32(1 << bit)
        return root + tirx.Cast("int32", more * more <= square) * i32(1 << bit)

    return element


CONVERTERS: dict[str, Callable[[TfliteOperands], Any]] = {
    "ABS": absolute,
    "ADD": addition(1),
    "MEAN": mean,
    "MUL": multiplication,
    "QUANTIZE": requantised,
    "SQRT": square_root,
    "SQUARED_DIFFERENCE": squared_difference,
    "SUB": addition(-1),
}
