"""IntegerArithmetic of products of tensors whose scale and zero point are computed in the run.

Dynamic quantisation in QDQ form writes DynamicQuantizeLinear, DequantizeLinear and a product by constant
weights, as Brevitas and PyTorch's PT2E do. With one scale and zero point for all of x, or for each row,

    sum_k s_x (x - z) s_w (w - r) = s_x s_w (sum x w - z sum w - r sum x + K z r)

with sums over K terms in int32. The importer dequantises such tensors by arithmetic: subtract and multiply.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from kiln.extents import is_one, shape_of
from kiln.graph.bindings import CallRewriter, const, operator
from kiln.graph.quantised_operands import QuantisedOperand, QuantisedWeights, less, type_of_sums

_MOVES = ("relax.permute_dims", "relax.reshape", "relax.expand_dims", "relax.squeeze")
_BYTES = ("int8", "uint8")
_FARTHEST = 255  # zero points from 0


@dataclass(frozen=True)
class ComputedLevels:
    """scale * (data - zero), with data of 8 bits; scale (float32) and zero are of all or of a row.

    `zero` is int32, or float32 where floats are subtracted; None for 0.
    """

    data: Any
    scale: Any
    zero: Any


def dynamic_product(rewriter: CallRewriter, operand: relax.Expr, weights: QuantisedWeights) -> Any:
    """The integer form of a matmul of `operand`, with computed scales, by constant weights; else None."""
    emit, op = rewriter.emit, relax.op
    left = computed_levels(rewriter, operand) if weights.value.dtype == np.int8 else None
    if left is None:
        return None
    kernel, rest = weights.value, weights.rest
    farthest = QuantisedOperand(left.data, weights.scale, np.array([_FARTHEST]), 0)
    if type_of_sums(farthest, weights, [0]) != "int32":
        return None
    total = emit(op.matmul(left.data, const(kernel, "int8"), out_dtype="int32"))
    if rest.any():
        rows = emit(op.sum(emit(op.astype(left.data, "int32")), -1, keepdims=True))
        if left.zero is not None:
            depth = const(kernel.shape[0], "int32")
            rows = emit(op.subtract(rows, emit(op.multiply(left.zero, depth))))
        total = emit(less(rewriter, total, rows, rest))
    if left.zero is not None:
        sums = const(kernel.astype("int32").sum(axis=0, dtype="int32"), "int32")
        total = emit(op.subtract(total, emit(op.multiply(left.zero, sums))))
    scales = weights.scale if weights.scale.size > 1 else weights.scale.reshape(())
    factor = emit(op.multiply(left.scale, const(scales, "float32")))
    return op.multiply(emit(op.astype(total, "float32")), factor)


def computed_levels(
    rewriter: CallRewriter, expr: relax.Expr, of_floats: bool = False
) -> ComputedLevels | None:
    """The levels of (q - z) * s with computed z and s, also moved if these are of the whole tensor.

    of_floats: also where q and z are converted before they are subtracted, as torchao does.
    """
    moves: list[Any] = []
    call = rewriter.definition(expr)
    while operator(call) in _MOVES:
        moves.append(call)
        call = rewriter.definition(call.args[0])
    if operator(call) != "relax.multiply":
        return None
    rank = len(call.ty.shape)
    difference, scale = rewriter.definition(call.args[0]), call.args[1]
    operands = _difference(rewriter, difference)
    if operands is None and of_floats:
        operands = _difference_of_floats(rewriter, difference)
    if operands is None or str(scale.ty.dtype) != "float32":
        return None
    data, zero = operands
    if len(data.ty.shape) != rank:
        return None
    numbers = [scale] if zero is None else [scale, zero]
    if not all(_is_number(each) or (not moves and _is_of_rows(each)) for each in numbers):
        return None
    for move in reversed(moves):
        data = rewriter.emit(relax.Call(move.op, [data, *move.args[1:]], move.attrs, move.ty_args))
    return ComputedLevels(data, scale, zero)


def _difference(rewriter: CallRewriter, floats: Any) -> tuple[Any, Any] | None:
    """(q, z) of the float32 `floats`, q - z in int32; z is None where nothing is subtracted."""
    if operator(floats) != "relax.astype" or str(floats.args[0].ty.dtype) != "int32":
        return None
    wide, zero = rewriter.definition(floats.args[0]), None
    if operator(wide) == "relax.subtract":
        wide, zero = rewriter.definition(wide.args[0]), wide.args[1]
        if not _of_bytes(rewriter.definition(zero)):
            return None
    return (wide.args[0], zero) if _of_bytes(wide) else None


def _difference_of_floats(rewriter: CallRewriter, floats: Any) -> tuple[Any, Any] | None:
    """(q, z) of `floats`, q - z in float32; z is None where nothing is subtracted."""
    wide, zero = floats, None
    if operator(wide) == "relax.subtract":
        wide, zero = rewriter.definition(wide.args[0]), wide.args[1]
    while operator(wide) == "relax.astype" and not _of_bytes(wide):
        wide = rewriter.definition(wide.args[0])
    return (wide.args[0], zero) if _of_bytes(wide) else None


def _of_bytes(call: Any) -> bool:
    """Whether an expression converts a tensor of 8 bits to a wider type."""
    return operator(call) == "relax.astype" and str(call.args[0].ty.dtype) in _BYTES


def _is_number(tensor: Any) -> bool:
    """Whether a tensor has one element, and broadcasts to any rank of one axis or more."""
    shape = shape_of(tensor)
    return len(shape) < 2 and all(map(is_one, shape))


def _is_of_rows(tensor: Any) -> bool:
    """Whether a tensor has one element for each row, or less."""
    shape = shape_of(tensor)
    return len(shape) > 1 and is_one(shape[-1])
