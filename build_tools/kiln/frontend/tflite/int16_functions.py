"""LOGISTIC, TANH and SOFTMAX of int16 in the integers of LiteRT's kernels, the same level for every input.

LiteRT interpolates between 256 values of the sigmoid, 1/24 apart: tanh(x) is 2 sigmoid(2 x) - 1. Inputs are
multiplied by a factor to count in 1/12288, with nine bits (sigmoid) or eight (tanh) between two values. In a
softmax it interpolates between 513 values of exp(x) from -10 to 0, and of 1 / (1 + x) from 0 to 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.ir import Expr

from kiln.arrays import Array
from kiln.frontend.tflite.fixed_point import factor_of, i32
from kiln.frontend.tflite.gate_quotients import each
from kiln.frontend.tflite.int16_products import narrowed
from kiln.frontend.tflite.interpolated_tables import halved, looked_up, table_of
from kiln.frontend.tflite.operands import Grid, TfliteOperands, const

op = relax.op
_LEVELS = 1 << 15  # the integer that stands for 1.0 in a result
_VALUES, _PER_UNIT = 256, 24  # the table of the sigmoid: its length, and its values for inputs 1.0 apart
_UNIT = 12288  # the integer that stands for an input of 1.0 in LiteRT's kernel
_MOST_FACTOR = (1 << 15) - 1


@dataclass(frozen=True)
class Interpolation:
    """How a function is interpolated in the table of the sigmoid.

    bits: number of low bits of an input that say where it is between two values of the table. last: the value
    for inputs after the last interval, with 16 bits after the point. powers: LiteRT multiplies an input
    without rounding if its scale is 2^p / 4096 with p from 0 to `powers`.
    """

    bits: int
    last: int
    powers: int


SIGMOID = Interpolation(9, 0xFFFE, 0)
TANH = Interpolation(8, 0xFFFF, 1)


def _table() -> Array:
    """The sigmoid of 0, 1/24, 2/24, … with 16 bits after the point.

    Each value is raised by half of the greatest error of the interpolation, -f''(x) h^2 / 8 where h is the
    distance of two inputs: without this, interpolated results would all be below the sigmoid. The last value
    is the greatest of 16 bits.
    """
    exact = 1 / (1 + np.exp(-np.arange(_VALUES) / _PER_UNIT))
    second_derivative = exact * (1 - exact) * (1 - 2 * exact)
    raised = exact - second_derivative / _PER_UNIT**2 / 16
    table = np.floor(raised * 65536 + 0.5).astype("int64")
    table[-1] = 65535
    return table


def _factor(scale: float, powers: int) -> tuple[int, int]:
    """The multiplier and the shift to the right that make an input of `scale` a multiple of 1/12288.

    powers: see Interpolation.
    """
    power = math.log2(scale * 4096)
    if abs(power - round(power)) < 1e-3 and 0 <= round(power) <= powers:
        return 3 << round(power), 0
    multiplier, shift = scale * _UNIT, 0
    while multiplier <= _MOST_FACTOR / 2 and shift <= 30:
        multiplier, shift = multiplier * 2, shift + 1
    return int(multiplier), shift


def _scale(node: TfliteOperands) -> float | None:
    """The scale of the input; None if the input is not int16, or the result has not the scale 2^-15."""
    source = node.grid(0)
    if source is None or node.result_grid() != Grid(1 / _LEVELS, 0, "int16"):
        return None
    return float(np.float32(source.scale)) if (source.dtype, source.zero) == ("int16", 0) else None


def _number(value: int, dtype: str = "int32") -> relax.Constant:
    return const(value, dtype)


def interpolated(node: TfliteOperands, function: Interpolation) -> relax.Expr | None:
    """The result of LOGISTIC or TANH of int16, as it is stored; None for what LiteRT computes otherwise."""
    scale = _scale(node)
    if scale is None:
        return None
    multiplier, shift = _factor(scale, function.powers)
    if multiplier > _MOST_FACTOR:
        return None
    table = _table()
    steps = np.diff(table, append=0)
    table[-1], steps[-1] = function.last, 0
    bits, rounding = function.bits, 1 << (shift - 1) if shift else 0

    def compute(x: Any, values: Any, differences: Any) -> Any:
        counted = each(
            lambda v: (tirx.Cast("int32", v) * i32(multiplier) + i32(rounding)) >> i32(shift),
            x,
            name="counted",
        )
        size = each(lambda v: tirx.max(v, -v), counted, name="size")

        def element(*at: Expr) -> Expr:
            index = tirx.Cast("int64", tirx.min(size(*at) >> i32(bits), i32(_VALUES - 1)))
            value, step = (tirx.Cast("int32", part(index)) for part in (values, differences))
            value = (value << i32(bits)) + (size(*at) & i32((1 << bits) - 1)) * step
            below = counted(*at) >> i32(31)  # -1 for a negative input
            # -v - 1 is ~v: a negative input has the result mirrored, with ties in the other direction.
            if function is TANH:
                value = ((value - i32(1 << (15 + bits))) ^ below) + i32(1 << (bits - 1))
                return tirx.Cast("int16", value >> i32(bits))
            value = (value ^ below) + (below & i32(1 << (16 + bits))) + i32(1 << bits)
            return tirx.Cast("int16", value >> i32(bits + 1))

        return te.compute(x.shape, element, name="interpolated")

    tables = const(table, "uint16"), const(steps, "int16")
    return node.emit_te(compute, node.raw(0), *tables, name="interpolated")


def logistic(node: TfliteOperands) -> relax.Expr | None:
    """LOGISTIC of int16; TVM converts other types."""
    return interpolated(node, SIGMOID)


def tanh(node: TfliteOperands) -> relax.Expr | None:
    """TANH of int16; TVM converts other types."""
    return interpolated(node, TANH)


def softmax(node: TfliteOperands) -> relax.Expr | None:
    """SOFTMAX of int16; TVM converts other types. None for scales for which LiteRT's shifts overflow."""
    scale = _scale(node)
    if scale is None or node.shape(0)[-1] > 1 << 16:
        return None
    beta = float(np.float32(node.options("SoftmaxOptions").Beta()))
    factor = factor_of(scale * beta / (10 / 65535))
    if factor.multiplier <= 0 or factor.shift > 15:
        return None
    bound, number = node.bind, _number
    levels = bound(op.astype(node.raw(0), "int32"))
    # How far below the greatest of the line, in 10/65535, as a product of 64 bits with two roundings.
    far = bound(op.subtract(bound(op.max(levels, axis=-1, keepdims=True)), levels))
    far = bound(op.left_shift(far, number(max(factor.shift, 0))))
    wide = bound(op.multiply(bound(op.astype(far, "int64")), number(factor.multiplier, "int64")))
    wide = bound(op.right_shift(bound(op.add(wide, number((1 << 30) - 1, "int64"))), number(31, "int64")))
    far = bound(op.astype(wide, "int32"))
    if factor.shift < 0:
        far = halved(node, far, -factor.shift)
    place = bound(op.maximum(bound(op.subtract(number(65535), far)), number(0)))
    powers = looked_up(node, place, table_of(np.exp, -10.0, 0.0, _LEVELS, "float64"))
    total = bound(op.sum(powers, axis=-1, keepdims=True))  # at least 32767
    # Bits of the sum beyond 15, then the sum as 1 + x with 16 bits for x.
    extra = None
    for bits in range(15, 31):
        one = bound(op.astype(bound(op.greater_equal(total, number(1 << bits))), "int32"))
        extra = one if extra is None else bound(op.add(extra, one))
    shifted = bound(op.left_shift(total, bound(op.subtract(number(16), extra))))
    x = bound(op.subtract(halved(node, shifted, 14), number(1 << 16)))
    x = bound(op.minimum(bound(op.maximum(x, number(0))), number(65535)))
    reciprocal = looked_up(node, x, table_of(lambda v: 1 / (1 + v), 0.0, 1.0, _LEVELS, "float64"))
    below = bound(op.right_shift(bound(op.multiply(powers, reciprocal)), bound(op.add(extra, number(13)))))
    result = op.right_shift(bound(op.add(below, number(1))), number(1))
    return narrowed(node, result, (0, _LEVELS - 1))


CONVERTERS = {"LOGISTIC": logistic, "SOFTMAX": softmax, "TANH": tanh}
