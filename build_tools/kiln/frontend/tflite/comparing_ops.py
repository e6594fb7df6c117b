"""Converters of TFLite's comparisons: of quantised tensors as LiteRT computes them, and of bool."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import relax

from kiln.frontend.tflite.operands import Grid, TfliteOperands, const

op = relax.op
_BITS = 8  # LiteRT compares multiples of 2^-8


def comparison(operator: Any) -> Callable[[TfliteOperands], Any]:
    """A converter of a comparison; of numbers without quantisation it is left to TVM.

    LiteRT rounds both operands to multiples of 2^-8: numbers that differ by less may be equal. Which of two
    int16 is less it decides by the integers, whatever their scales.
    """

    def convert(node: TfliteOperands) -> Any:
        if node.dtype(0) == "bool":
            return operator(*(node.emit(op.astype(node.raw(index), "int8")) for index in range(2)))
        grids = [grid for grid in (node.grid(index) for index in range(2)) if grid is not None]
        if len(grids) < 2 or max(grid.scale for grid in grids) >= 1:
            return None
        is_order_of_int16 = node.dtype(0) == "int16" and node.kind not in ("EQUAL", "NOT_EQUAL")
        are_levels_apart = grids[0] == grids[1] and grids[0].scale >= 2**-_BITS
        if is_order_of_int16 or are_levels_apart:
            return operator(node.raw(0), node.raw(1))
        return operator(*(_in_steps(node, index, grid) for index, grid in enumerate(grids)))

    return convert


def _in_steps(node: TfliteOperands, index: int, grid: Grid) -> Any:
    """Input `index` in multiples of 2^-8, rounded twice: by a multiplier of 31 bits, and by its exponent."""
    mantissa, exponent = math.frexp(grid.scale)
    levels = node.bind(op.subtract(node.bind(op.astype(node.raw(index), "int64")), const(grid.zero, "int64")))
    multiplier = const(round(mantissa * 2**31) << _BITS, "int64")
    product = node.bind(op.add(node.bind(op.multiply(levels, multiplier)), const(1 << 30, "int64")))
    steps = node.bind(op.right_shift(product, const(31, "int64")))
    if exponent < 0:  # half away from 0
        negative = node.bind(op.astype(node.bind(op.less(steps, const(0, "int64"))), "int64"))
        moved = node.bind(
            op.subtract(node.bind(op.add(steps, const(1 << (-exponent - 1), "int64"))), negative)
        )
        steps = node.bind(op.right_shift(moved, const(-exponent, "int64")))
    return node.bind(op.astype(steps, "int32"))


CONVERTERS: dict[str, Callable[[TfliteOperands], Any]] = {
    "EQUAL": comparison(op.equal),
    "GREATER": comparison(op.greater),
    "GREATER_EQUAL": comparison(op.greater_equal),
    "LESS": comparison(op.less),
    "LESS_EQUAL": comparison(op.less_equal),
    "NOT_EQUAL": comparison(op.not_equal),
}
