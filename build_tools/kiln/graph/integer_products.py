"""IntegerArithmetic of products with constant weights that have batch axes, or are the left operand.

    sum_k s_x (x - z) s_w (w - r) = s_x s_w (sum x w - r sum x - z sum w + K z r)

with sums over K terms in int32, or int64 where that may not suffice. The weights have one scale and zero
point, or one for each index of an axis that is not summed: a row, a column, or a batch axis, such as that of
experts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from kiln.graph.bindings import Array, CallRewriter, const
from kiln.graph.quantised_operands import (
    QuantisedOperand,
    QuantisedWeights,
    along,
    constant_weights,
    less,
    scaled_levels,
    type_of_sums,
)


def batch_product(rewriter: CallRewriter, call: relax.Call) -> Any:
    """The integer form of relax.matmul of a quantised tensor and constant weights; None for others."""
    ranks = [len(operand.ty.shape) for operand in call.args]
    if min(ranks) < 2 or str(call.ty.dtype) != "float32":
        return None
    for side in (1, 0):
        summed = ranks[side] - 2 if side else ranks[side] - 1
        quantised_weights = _weights(rewriter, call.args[side], summed)
        other = None if quantised_weights is None else scaled_levels(rewriter, call.args[1 - side])
        if quantised_weights is not None and other is not None:
            return _product(rewriter, quantised_weights, other, side)
    return None


def _weights(rewriter: CallRewriter, expr: relax.Expr, summed: int) -> tuple[QuantisedWeights, int] | None:
    """Constant weights, and the axis, other than `summed`, that their scales are of; None for others."""
    rank = len(expr.ty.shape)
    for axis in reversed(range(rank)):
        weights = None if axis == summed else constant_weights(rewriter, expr, axis)
        if weights is not None:
            return weights, axis
    return None


def _product(
    rewriter: CallRewriter, found: tuple[QuantisedWeights, int], levels: QuantisedOperand, side: int
) -> Any:
    """The product; `found`: weights, which are operand `side`, and the axis of their scales."""
    (weights, axis), op, emit = found, relax.op, rewriter.emit
    kernel, rank = weights.value, weights.value.ndim
    summed = rank - 2 if side else rank - 1
    kind = type_of_sums(levels, weights, [summed])

    def spread(numbers: Array) -> Array:
        return along(numbers, axis, rank) if numbers.size > 1 else numbers.reshape(())

    data, zero_point = levels.data, levels.zero_point
    if not side and str(data.ty.dtype) == "uint8":  # columns are int8
        wide = emit(op.subtract(emit(op.astype(data, "int16")), const(128, "int16")))
        data, zero_point = emit(op.astype(wide, "int8")), zero_point - 128
    operands = [data, const(kernel, str(kernel.dtype))]
    total = emit(op.matmul(*(operands if side else operands[::-1]), out_dtype=kind))
    rest = spread(weights.rest.astype("int64"))
    offset = -zero_point * kernel.astype("int64").sum(axis=summed, keepdims=True)
    if weights.rest.any():
        wide = emit(op.astype(data, kind))
        sums = emit(op.sum(wide, -1 if side else -2, keepdims=True))
        total = less(rewriter, total, sums, rest)
        offset = offset + rest * zero_point * kernel.shape[summed]
    if np.any(offset):
        total = emit(op.add(total, const(offset, kind)))
    real = emit(op.astype(total, "float32"))
    return op.multiply(real, const(spread(weights.scale) * levels.scale[0], "float32"))
