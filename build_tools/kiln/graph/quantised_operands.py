"""Quantised operands of convolutions and products, as kiln.graph.integer computes them on integers."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import relax

from kiln.extents import shape_of
from kiln.graph.bindings import Array, CallRewriter, const, constant, integers, operator

_MOVES = ("relax.permute_dims", "relax.reshape", "relax.expand_dims", "relax.squeeze")
_OF_CONSTANTS = ("relax.permute_dims", "relax.reshape")
# Types of quantised operands, with the greatest magnitude of a level.
MOST = {"int8": 128, "uint8": 255, "int16": 1 << 15}
_LIMIT = (1 << 31) - (1 << 25)  # of sums in int32, which leaves room for a bias


@dataclass(frozen=True)
class QuantisedOperand:
    """value = scale * (data - zero_point); `scale` has one entry, or one for each index of `axis`.

    `zero_points`: of weights, in the same way; `zero_point` is the first.
    """

    data: Any
    scale: Array
    zero_points: Array
    axis: int

    @property
    def zero_point(self) -> int:
        return int(self.zero_points[0])


def dequantised(
    rewriter: CallRewriter, expr: relax.Expr, several: bool = False, types: Container[str] = MOST
) -> QuantisedOperand | None:
    """The tensor of one of `types` that `expr` dequantises; None for others.

    several: also one with several zero points.
    """
    call = rewriter.definition(expr)
    if operator(call) != "relax.dequantize" or str(call.args[0].ty.dtype) not in types:
        return None
    scale, zero = constant(call.args[1]), constant(call.args[2])
    if scale is None or zero is None:
        return None
    points = zero.astype("int32").reshape(-1)
    points = points[:1] if np.all(points == points[:1]) else points
    if points.size != 1 and not several:
        return None
    rank = len(call.args[0].ty.shape)
    return QuantisedOperand(
        call.args[0], scale.astype("float64").reshape(-1), points, int(call.attrs.axis) % max(1, rank)
    )


@dataclass(frozen=True)
class QuantisedWeights:
    """Constant weights: scale * (value - rest), with one scale for each output channel, or one for all.

    `value` is of int8, or of int16 where the file's weights need it. `rest`, as many numbers, is 0 unless the
    weights minus their zero points do not fit into the type.
    """

    value: Array
    scale: Array
    rest: Array


def constant_weights(rewriter: CallRewriter, expr: relax.Expr, channel_axis: int) -> QuantisedWeights | None:
    """The constant weights that `expr` dequantises, also transposed and reshaped; None for others."""
    moves: list[Any] = []
    call = rewriter.definition(expr)
    while operator(call) in _OF_CONSTANTS:
        moves.append(call)
        call = rewriter.definition(call.args[0])
    levels = dequantised(rewriter, call, several=True)
    if levels is None:
        return None
    data = rewriter.definition(levels.data)
    value = constant(data)
    if value is None and operator(data) == "relax.permute_dims":
        inner = constant(rewriter.definition(data.args[0]))
        value = None if inner is None else _moved(data, inner)
    if value is None or not value.size:
        return None
    scale, points = levels.scale, levels.zero_points
    if max(scale.size, points.size) > 1:
        numbers = along(np.arange(value.shape[levels.axis], dtype="int32"), levels.axis, value.ndim)
        places = np.broadcast_to(numbers, value.shape)
        for move in reversed(moves):
            places = _moved(move, places)
        channels = np.moveaxis(places, channel_axis, 0).reshape(places.shape[channel_axis], -1)
        if (channels != channels[:, :1]).any():  # a scale of another axis, or of parts of a channel
            return None
        scale, points = (each if each.size == 1 else each[channels[:, 0]] for each in (scale, points))
    for move in reversed(moves):
        value = _moved(move, value)
    value = value.astype("int32")
    shifted = value - along(points, channel_axis, value.ndim)
    kind = "int16" if str(levels.data.ty.dtype) == "int16" else "int8"
    for narrow in ("int8", kind):
        if shifted.min(initial=0) >= np.iinfo(narrow).min and shifted.max(initial=0) <= np.iinfo(narrow).max:
            return QuantisedWeights(shifted.astype(narrow), scale, np.zeros(1, "int32"))
    middle = 128 if str(levels.data.ty.dtype) == "uint8" else 0
    return QuantisedWeights((value - middle).astype(kind), scale, points - middle)


def _moved(move: Any, value: Array) -> Array:
    """An array moved as the call `move`, one of _OF_CONSTANTS, does."""
    if operator(move) == "relax.permute_dims":
        return np.transpose(value, None if move.attrs.axes is None else integers(move.attrs.axes))
    return value.reshape([int(size) for size in shape_of(move)])  # no constant has dynamic sizes


def along(numbers: Array, axis: int, rank: int) -> Array:
    """One number, or one for each index of an axis, that broadcasts to a tensor of `rank` axes."""
    return numbers.reshape([-1 if position == axis else 1 for position in range(rank)])


def scaled_levels(rewriter: CallRewriter, expr: relax.Expr) -> QuantisedOperand | None:
    """A dequantised tensor with one scale, also multiplied by a number and moved, as its levels; else None.

    Gemm multiplies its left operand by alpha, and attention a query by a factor.
    """
    moves: list[Any] = []
    call, factor = rewriter.definition(expr), 1.0
    while operator(call) in (*_MOVES, "relax.multiply", "relax.divide"):
        inner = call.args[0]
        if operator(call) in _MOVES:
            moves.append(call)
        else:
            inner, number = _by_number(rewriter, call)
            factor *= number
        if inner is None:
            return None
        call = rewriter.definition(inner)
    levels = dequantised(rewriter, call)
    if levels is None or levels.scale.size != 1 or not math.isfinite(factor):
        return None
    data = levels.data
    for move in reversed(moves):
        data = rewriter.emit(relax.Call(move.op, [data, *move.args[1:]], move.attrs, move.ty_args))
    return replace(levels, data=data, scale=levels.scale * factor)


def _by_number(rewriter: CallRewriter, call: Any) -> tuple[Any, float]:
    """A tensor and the number that a product or quotient multiplies it with; (None, 1) for others."""
    pairs = [(0, 1), (1, 0)] if operator(call) == "relax.multiply" else [(0, 1)]
    for tensor, number in pairs:
        value = constant(rewriter.definition(call.args[number]))
        if value is not None and value.size == 1 and value.ndim <= len(call.args[tensor].ty.shape):
            factor = float(value.reshape(()))
            inverse = 1.0 / factor if factor else math.nan
            return call.args[tensor], factor if operator(call) == "relax.multiply" else inverse
    return None, 1.0


def type_of_sums(image: QuantisedOperand, weights: QuantisedWeights, summed: Sequence[int]) -> str:
    """The type of sums of products over the axes `summed` of the weights, and of each of their parts.

    int32 where they fit, which the weights as they are decide: sums of 60,000 products of bytes may fit or
    not; int64 for others.
    """
    value = np.abs(weights.value.astype("int64"))
    count = math.prod(value.shape[axis] for axis in summed)
    magnitude = int(value.sum(axis=tuple(summed)).max(initial=0)) + int(np.abs(weights.rest).max()) * count
    most = magnitude * (MOST[str(image.data.ty.dtype)] + abs(image.zero_point))
    return "int32" if most < _LIMIT else "int64"


def rescale(rewriter: CallRewriter, sums: Any, offset: Array, scale: Array, shape: list[int]) -> Any:
    """scale * (total + offset) as float32; `offset` and `scale` have one entry for each output channel."""
    if np.any(offset):
        sums = rewriter.emit(relax.op.add(sums, const(offset.reshape(shape), str(sums.ty.dtype))))
    as_float = rewriter.emit(relax.op.astype(sums, "float32"))
    factor = const(scale, "float32") if scale.ndim == 0 else const(scale.reshape(shape), "float32")
    return relax.op.multiply(as_float, factor)


def less(rewriter: CallRewriter, products: Any, sums: Any, rest: Array) -> Any:
    """products - rest * sums, all of one type."""
    shares = rewriter.emit(relax.op.multiply(sums, const(rest, str(sums.ty.dtype))))
    return rewriter.emit(relax.op.subtract(products, shares))
