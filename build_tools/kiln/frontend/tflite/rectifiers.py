"""RELU, RELU6 and LEAKY_RELU of int16, and PRELU of quantised tensors, in the integers of LiteRT's kernels.

Results are the same bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tflite
from tvm import relax, tirx
from tvm.ir import Expr

from kiln.frontend.tflite.fixed_point import (
    RANGES,
    each_element,
    factor_of,
    i32,
    limited,
    range_of_activation,
    ratio,
    times,
)
from kiln.frontend.tflite.interpolated_tables import int16_grids
from kiln.frontend.tflite.operands import Grid, TfliteOperands, const

op = relax.op
_SLOPES = {"int8": "int8", "uint8": "uint8", "int16": "int8"}  # by the type of the activations


def rectifier(activation: int) -> Callable[[TfliteOperands], Any]:
    """A converter of RELU or RELU6, by its code as a fused activation, of int16 to another scale.

    None for one scale and for other types, which TVM converts.
    """

    def convert(node: TfliteOperands) -> Any:
        grids = int16_grids(node)
        if grids is None or grids[0].scale == grids[1].scale:
            return None
        factor = factor_of(ratio(grids[0].scale, grids[1].scale))
        limits = range_of_activation(activation, grids[1].scale, 0, "int16")

        def element(x: Expr) -> Expr:
            return limited(times(x, factor), "int16", limits)

        return each_element(node, element, node.raw(0), name="rectified")

    return convert


def _sloped(
    node: TfliteOperands, x: Any, product: Any, source: Grid, result: Grid, slope: float
) -> Any:  # fmt: skip
    """x where it is not negative, else `product` times the scale `slope`; both without zero points."""
    above = factor_of(ratio(source.scale, result.scale))
    real = ratio(np.float32(source.scale) * np.float32(slope), result.scale)
    below, is_negative = factor_of(abs(real)), real < 0

    def element(level: Expr, other: Expr) -> Expr:
        scaled = times(other, below)
        chosen = tirx.Select(level >= i32(0), times(level, above), -scaled if is_negative else scaled)
        return limited(chosen + i32(result.zero), result.dtype)

    return each_element(node, element, x, product, name="sloped")


def _levels(node: TfliteOperands, index: int, grid: Grid) -> Any:
    """Input `index` as int32 without its zero point."""
    levels = node.bind(op.astype(node.raw(index), "int32"))
    return node.bind(op.subtract(levels, const(grid.zero, "int32"))) if grid.zero else levels


def leaky_relu(node: TfliteOperands) -> Any:
    """LEAKY_RELU of int16; TVM converts other types."""
    grids = int16_grids(node)
    if grids is None:
        return None
    x = node.raw(0)
    return _sloped(node, x, x, *grids, float(node.options("LeakyReluOptions").Alpha()))


def prelu(node: TfliteOperands) -> Any:
    """PRELU of quantised tensors; others: `computing_ops`.

    Raises ValueError for slopes of a type that LiteRT's kernel does not read as what it is.
    """
    source, slopes, result = node.grid(0), node.grid(1), node.result_grid()
    if source is None or slopes is None or result is None or not {source.dtype, result.dtype} <= {*RANGES}:
        return None
    if slopes.dtype != _SLOPES[source.dtype]:
        raise ValueError(
            f"its slopes (input 1) are {slopes.dtype}, allowed with activations of {source.dtype}: "
            f"{_SLOPES[source.dtype]}, as which LiteRT reads them"
        )
    x = _levels(node, 0, source)
    product = node.bind(op.multiply(x, _levels(node, 1, slopes)))
    return _sloped(node, x, product, source, result, slopes.scale)


CONVERTERS: dict[str, Callable[[TfliteOperands], Any]] = {
    "LEAKY_RELU": leaky_relu,
    "PRELU": prelu,
    "RELU": rectifier(tflite.ActivationFunctionType.RELU),
    "RELU6": rectifier(tflite.ActivationFunctionType.RELU6),
}
