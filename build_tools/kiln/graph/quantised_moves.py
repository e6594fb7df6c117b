"""QuantisedMoves: operators that only move or compare values work on the integers of a quantised tensor.

    move(dequantize(q)) → dequantize(move(q))        quantize(move(x)) → move(quantize(x))
    quantize(dequantize(q)) → q if both have the same scale, zero point and type

with one scale for the whole tensor. Moves are reshapes, transposes, slices, splits, look-ups, concats,
paddings, maxima and minima over windows, axes and of two tensors, the greatest elements of a line, and
nearest-neighbour resizing; ReLU becomes a maximum with the zero point. Tensors of the same scale and zero
point are compared as integers, and the position of the greatest element is that of the greatest integer. All
of it holds exactly: a move changes no value, and both conversions are monotone. So embeddings stay integers,
and tensors between quantised operators are stored as integers. Guarantees: unchanged results.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm
from tvm import relax

from kiln.extents import shape_of
from kiln.graph.bindings import (
    CallRewriter,
    Rule,
    const,
    constant,
    count_uses,
    has_operator,
    operator,
    rewrite_calls,
)

# Moves of one tensor, the first argument.
_MOVES = (
    "relax.reshape",
    "relax.permute_dims",
    "relax.squeeze",
    "relax.expand_dims",
    "relax.flatten",
    "relax.take",
    "relax.gather_elements",
    "relax.gather_nd",
    "relax.strided_slice",
    "relax.flip",
    "relax.broadcast_to",
    "relax.repeat",
    "relax.tile",
    "relax.nn.max_pool1d",
    "relax.nn.max_pool2d",
    "relax.nn.max_pool3d",
    "relax.nn.pad",
    "relax.image.resize2d",
    "relax.max",
    "relax.min",
)
# Operators of two tensors with one quantisation: those that choose an element, and those that compare.
_CHOICES = ("relax.maximum", "relax.minimum")
_COMPARISONS = tuple(
    f"relax.{name}" for name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
)
# Operators whose result is the same for the integers of a tensor: positions of its extremes.
_POSITIONS = ("relax.argmax", "relax.argmin")
_QUANTISED = ("int8", "uint8", "int16")
_MIDDLE = 1 << 15  # of the range of uint16, whose levels are computed as int16


class _Moves:
    """The rules; `uses`: number of readers of each variable. `divided`: whether a split became a tuple."""

    def __init__(self, uses: Mapping[Any, int]) -> None:
        self.uses, self.divided = uses, False

    def dequantised(self, rewriter: CallRewriter, expr: relax.Expr) -> Any:
        """The dequantize of integers of at most 16 bits with one scale that `expr` is bound to, or None."""
        call = rewriter.definition(expr)
        if operator(call) != "relax.dequantize" or str(call.args[0].ty.dtype) not in _QUANTISED:
            return None
        return call if _one_scale(call) else None

    def move(self, rewriter: CallRewriter, call: relax.Call) -> Any:
        """A move of a dequantised tensor → the dequantised move."""
        dequantised = self.dequantised(rewriter, call.args[0]) if _is_move(call) else None
        if dequantised is None:
            return None
        levels = _on_levels(call, dequantised.args[0], dequantised, exact=True)
        return None if levels is None else _like(dequantised, rewriter.emit(levels))

    def product(self, rewriter: CallRewriter, call: relax.Call) -> Any:
        """A product of vectors of dequantised numbers → the product of matrices of one row or column."""
        shapes, op = [shape_of(operand) for operand in call.args], relax.op
        levels = [rewriter.definition(operand) for operand in call.args]
        if min(map(len, shapes)) != 1 or any(operator(each) != "relax.dequantize" for each in levels):
            return None
        if not all(map(_one_scale, levels)):
            return None
        matrices = [
            rewriter.emit(op.reshape(operand, form)) if len(shape) == 1 else operand
            for operand, shape, form in zip(call.args, shapes, ([1, -1], [-1, 1]), strict=True)
        ]
        return op.reshape(rewriter.emit(op.matmul(*matrices)), call.ty.shape)

    def position(self, rewriter: CallRewriter, call: relax.Call) -> Any:
        """The position of an extreme of a dequantised tensor → that of an extreme of its integers."""
        dequantised = self.dequantised(rewriter, call.args[0])
        return None if dequantised is None else relax.Call(call.op, [dequantised.args[0]], call.attrs)

    def topk(self, rewriter: CallRewriter, call: relax.Call) -> Any:
        """The greatest or least elements of a dequantised tensor → those of its integers, dequantised."""
        dequantised = self.dequantised(rewriter, call.args[0])
        if dequantised is None:
            return None
        kind = str(call.attrs.ret_type)
        extremes = rewriter.emit(relax.Call(call.op, [dequantised.args[0]], call.attrs))
        if kind != "both":
            return extremes if kind == "indices" else _like(dequantised, extremes)
        values, places = (rewriter.emit(relax.TupleGetItem(extremes, index)) for index in range(2))
        self.divided = True
        return relax.Tuple([rewriter.emit(_like(dequantised, values)), places])

    def concat(self, rewriter: CallRewriter, call: relax.Call) -> Any:
        """A concat of tensors with the same quantisation → the dequantised concat."""
        fields = _fields(rewriter, call.args[0])
        dequantised = [self.dequantised(rewriter, field) for field in fields]
        if not dequantised or any(each is None or not _same(each, dequantised[0]) for each in dequantised):
            return None
        joined = rewriter.emit(relax.op.concat([each.args[0] for each in dequantised], int(call.attrs.axis)))
        return _like(dequantised[0], joined)

    def binary(self, rewriter: CallRewriter, call: Any) -> Any:
        """A choice or comparison of tensors with the same quantisation → that of their integers."""
        left, right = (self.dequantised(rewriter, argument) for argument in call.args)
        if left is None or right is None or not _same(left, right):
            return None
        if str(left.args[0].ty.dtype) != str(right.args[0].ty.dtype):
            return None
        moved = relax.Call(call.op, [left.args[0], right.args[0]], call.attrs, call.ty_args)
        return moved if operator(call) in _COMPARISONS else _like(left, rewriter.emit(moved))

    def split(self, rewriter: CallRewriter, call: relax.Call) -> Any:
        """The parts of a dequantised tensor → its dequantised parts."""
        dequantised = self.dequantised(rewriter, call.args[0])
        if dequantised is None:
            return None
        items_call = rewriter.emit(relax.Call(call.op, [dequantised.args[0]], call.attrs))
        items = [rewriter.emit(relax.TupleGetItem(items_call, index)) for index in range(len(call.ty.fields))]
        self.divided = True
        return relax.Tuple([rewriter.emit(_like(dequantised, item)) for item in items])

    def relu(self, rewriter: CallRewriter, call: relax.Call) -> Any:
        """ReLU of a dequantised tensor → the dequantised maximum with the zero point."""
        dequantised = self.dequantised(rewriter, call.args[0])
        if dequantised is None:
            return None
        dtype = str(dequantised.args[0].ty.dtype)
        zero = np.asarray(constant(dequantised.args[2])).reshape(-1)[0]
        return _like(dequantised, rewriter.emit(relax.op.maximum(dequantised.args[0], const(zero, dtype))))

    def quantize(self, rewriter: CallRewriter, call: relax.Call) -> Any:
        """Quantize of a move that nothing else reads → the move of the quantised tensor."""
        if not _one_scale(call) or str(call.attrs.out_dtype) not in _QUANTISED:
            return None
        quantised = self._quantised(rewriter, call, call.args[0])
        return None if quantised is call else quantised

    def _quantised(self, rewriter: CallRewriter, call: relax.Call, expr: relax.Expr) -> Any:
        """`expr` quantised as `call` does."""
        inner = rewriter.definition(expr)
        real = operator(inner) == "relax.dequantize" and _one_scale(inner) and _same(inner, call)
        if real and str(inner.args[0].ty.dtype) == str(call.attrs.out_dtype):
            return inner.args[0]
        single = isinstance(expr, relax.Var) and self.uses.get(expr, 0) == 1
        if single and _is_move(inner) and _is_float(inner.args[0]):
            source = rewriter.emit(self._quantised(rewriter, call, inner.args[0]))
            return _on_levels(inner, source, call, exact=False)
        if single and operator(inner) == "relax.concat":
            fields = [
                rewriter.emit(self._quantised(rewriter, call, field))
                for field in _fields(rewriter, inner.args[0])
            ]
            return relax.op.concat(fields, int(inner.attrs.axis))
        if expr.same_as(call.args[0]):
            return call
        axis, dtype = int(call.attrs.axis), str(call.attrs.out_dtype)
        rank = len(expr.ty.shape)
        return relax.op.quantize(expr, call.args[1], call.args[2], min(axis, rank - 1), dtype)


def _cast(rewriter: CallRewriter, call: Any) -> Any:
    """Levels of int16 that were moved to uint16 and back → as they were."""
    unsigned = _before_move(rewriter, call, "int16", -_MIDDLE)
    if unsigned is None:
        return None
    return _before_move(rewriter, rewriter.definition(unsigned), "uint16", _MIDDLE)


def _before_move(rewriter: CallRewriter, call: Any, dtype: str, by: int) -> Any:
    """The levels that `call` has moved to `dtype`, adding `by` in int32; None for other calls."""
    if operator(call) != "relax.astype" or str(call.ty.dtype) != dtype:
        return None
    total = rewriter.definition(call.args[0])
    number = constant(total.args[1]) if operator(total) == "relax.add" else None
    if number is None or number.dtype != np.int32 or number.size != 1 or int(number.reshape(())) != by:
        return None
    wide = rewriter.definition(total.args[0])
    return wide.args[0] if operator(wide) == "relax.astype" else None


def _is_float(expr: relax.Expr) -> bool:
    return str(expr.ty.dtype) == "float32"


def _is_move(call: Any) -> bool:
    """Whether a call moves values of its first argument, for integers as for floats."""
    name = operator(call)
    if name == "relax.image.resize2d":  # another method than the nearest neighbour computes
        fixed = str(call.attrs.out_dtype) not in ("", "void", "None")
        return str(call.attrs.method) == "nearest_neighbor" and not fixed
    return name in _MOVES


def _on_levels(call: Any, data: Any, conversion: Any, exact: bool) -> Any:
    """The move `call` applied to the integers `data`.

    `conversion`: the quantize or dequantize between them and floats.

    None for a padding whose value is not exactly a level, if `exact`; else the nearest level is used.
    """
    if operator(call) != "relax.nn.pad" or str(call.attrs.pad_mode) != "constant":
        return relax.Call(call.op, [data, *call.args[1:]], call.attrs, call.ty_args)
    scale, zero = (np.asarray(constant(argument)).reshape(-1)[0] for argument in conversion.args[1:3])
    limits, value = np.iinfo(str(data.ty.dtype)), np.float32(call.attrs.pad_value)
    with np.errstate(over="ignore"):
        steps = np.rint(np.clip(value * (np.float32(1) / np.float32(scale)), -(2.0**20), 2.0**20))
    level = np.clip(int(steps) + int(zero), limits.min, limits.max)
    if exact and np.float32(int(level) - int(zero)) * np.float32(scale) != value:
        return None
    return relax.op.nn.pad(data, [int(width) for width in call.attrs.pad_width], "constant", float(level))


def _one_scale(call: relax.Call) -> bool:
    values = [constant(argument) for argument in call.args[1:3]]
    return all(value is not None and value.size == 1 for value in values)


def _same(a: Any, b: Any) -> bool:
    """Whether two conversions with one scale each have the same scale, zero point and its type."""
    pairs = [(constant(a.args[index]), constant(b.args[index])) for index in (1, 2)]
    return all(
        x.dtype == y.dtype and np.array_equal(x.reshape(-1), y.reshape(-1))
        for x, y in pairs
        if x is not None and y is not None
    )


def _like(call: relax.Call, data: Any) -> Any:
    """`data` dequantised with the scale and zero point of `call`."""
    return relax.op.dequantize(data, call.args[1], call.args[2], 0, str(call.attrs.out_dtype))


def _fields(rewriter: CallRewriter, expr: relax.Expr) -> list[Any]:
    definition = rewriter.definition(expr)
    return list(definition.fields) if isinstance(definition, relax.Tuple) else []


def quantised_moves(mod: tvm.IRModule) -> tvm.IRModule:
    """Let operators that move values work on integers, in two rounds: dequantize down, quantize up."""
    if not has_operator(mod, ("relax.dequantize", "relax.quantize")):
        return relax.transform.DeadCodeElimination()(rewrite_calls(mod, {"relax.astype": _cast}))
    for _ in range(2):
        moves = _Moves(count_uses(mod))
        down: dict[str, Rule] = dict.fromkeys(_MOVES, moves.move)
        down |= dict.fromkeys((*_CHOICES, *_COMPARISONS), moves.binary)
        down |= {**dict.fromkeys(_POSITIONS, moves.position), "relax.topk": moves.topk}
        down |= {"relax.matmul": moves.product, "relax.astype": _cast}
        down |= {"relax.concat": moves.concat, "relax.nn.relu": moves.relu, "relax.split": moves.split}
        mod = rewrite_calls(mod, down)
        if moves.divided:
            mod = relax.transform.CanonicalizeBindings()(mod)  # reads of a tuple's items become the items
        mod = relax.transform.DeadCodeElimination()(mod)
        mod = rewrite_calls(mod, {"relax.quantize": _Moves(count_uses(mod)).quantize})
        mod = relax.transform.DeadCodeElimination()(mod)
    return mod
