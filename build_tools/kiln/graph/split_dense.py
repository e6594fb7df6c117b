"""SplitDense: split a dense layer whose columns have different readers into one layer for each reader.

Attention often computes queries, keys and values in one matmul and then splits the result; the pieces are not
contiguous, so that each is copied before it is used. Splitting the weights, which are constants, costs
nothing, and matmuls with a third of the columns run as fast. The split is relax.split on the last axis, or
relax.take of one index of an axis that a reshape has made from the last axis:

    split(dense(x), 3)            dense(x) as (b, s, 3, h, d), transposed, then [i] of the axis of size 3

Guarantees: same results. Does not change a dense layer whose unsplit result has another reader.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
from tvm import relax

from kiln.graph.bindings import (
    Array,
    CallRewriter,
    Rule,
    const,
    constant,
    count_uses,
    integers,
    operator,
    rewrite_calls,
)


@dataclass(frozen=True)
class Dense:
    """x @ weights (+ bias), or a range of its columns; `shape`: the result's sizes before the last axis."""

    x: Any
    weights: Array
    bias: Array | None
    shape: list[Any]

    def columns(self, begin: int, end: int) -> Dense:
        """The layer restricted to the columns begin to end - 1."""
        bias = None if self.bias is None else self.bias[begin:end]
        return replace(self, weights=self.weights[:, begin:end], bias=bias)

    def emit(self, rewriter: CallRewriter) -> Any:
        """Emit the layer; its result has shape (*`shape`, columns)."""
        dtype = str(self.weights.dtype)
        result = rewriter.emit(relax.op.matmul(self.x, const(self.weights, dtype)))
        if self.bias is not None:
            result = rewriter.emit(relax.op.add(result, const(self.bias, dtype)))
        width = tvm.tirx.IntImm("int64", self.weights.shape[1])
        return rewriter.emit(relax.op.reshape(result, relax.ShapeExpr([*self.shape, width])))


class _Splitter:
    """The rewriting rules. `uses`: number of reads of each variable."""

    def __init__(self, uses: dict[Any, int]) -> None:
        self.uses = uses

    def dense(self, rewriter: CallRewriter, expr: relax.Expr, readers: int) -> Dense | None:
        """The dense layer that computes `expr`; None if there is none or `expr` has not `readers` reads."""
        if self.uses.get(expr) != readers or not len(expr.ty.shape):
            return None
        call = rewriter.definition(expr)
        name = operator(call)
        if name == "relax.matmul":
            weights = constant(call.args[1])
            if weights is None or weights.ndim != 2 or call.attrs.out_dtype is not None:
                return None
            return Dense(call.args[0], weights, None, list(expr.ty.shape)[:-1])
        if name == "relax.reshape":
            dense = self.dense(rewriter, call.args[0], 1)
            width = expr.ty.shape[-1]
            whole = isinstance(width, tvm.tirx.IntImm) and dense and int(width) == dense.weights.shape[1]
            return replace(dense, shape=list(expr.ty.shape)[:-1]) if dense and whole else None
        if name == "relax.add":
            for data, added in (call.args, reversed(call.args)):
                bias = constant(added)
                dense = self.dense(rewriter, data, 1) if bias is not None else None
                if (
                    dense
                    and bias is not None
                    and bias.shape == dense.weights.shape[1:]
                    and dense.bias is None
                ):
                    return replace(dense, bias=bias)
        return None

    def split(self, rewriter: CallRewriter, call: relax.Call) -> Any:
        """Rule for relax.split along the last axis of a dense layer."""
        rank = len(call.args[0].ty.shape)
        if int(call.attrs.axis) % rank != rank - 1:
            return None
        dense = self.dense(rewriter, call.args[0], 1)
        if dense is None:
            return None
        begin, pieces = 0, []
        for field in call.ty.fields:
            width = int(field.shape[-1])
            pieces.append(dense.columns(begin, begin + width).emit(rewriter))
            begin += width
        return relax.Tuple(pieces)

    def take(self, rewriter: CallRewriter, call: relax.Call) -> Any:
        """Rule for relax.take(…, i, axis) of a reshaped, perhaps transposed, dense layer."""
        index, axis = constant(call.args[1]), call.attrs.axis
        data = call.args[0]
        order = list(range(len(data.ty.shape)))
        if index is None or index.ndim or axis is None or int(index) < 0:
            return None
        readers = self.uses.get(data, 0)
        inner = rewriter.definition(data)
        if operator(inner) == "relax.permute_dims" and inner.attrs.axes is not None:
            order = [axis % len(order) for axis in integers(inner.attrs.axes)]
            data, readers = inner.args[0], 1
        cut = rewriter.definition(data)
        if operator(cut) != "relax.reshape" or self.uses.get(data) != readers:
            return None
        picked = order[int(axis) % len(order)]
        inside = list(data.ty.shape)[picked:]
        if not all(isinstance(size, tvm.tirx.IntImm) for size in inside):
            return None
        sizes = [int(size) for size in inside]
        dense = self.dense(rewriter, cut.args[0], 1)
        if dense is None or dense.weights.shape[1] != int(np.prod(sizes)) or int(index) >= sizes[0]:
            return None
        width = dense.weights.shape[1] // sizes[0]
        piece = dense.columns(int(index) * width, (int(index) + 1) * width).emit(rewriter)
        without = [size for number, size in enumerate(data.ty.shape) if number != picked]
        piece = rewriter.emit(relax.op.reshape(piece, relax.ShapeExpr(without)))
        left_over = [number - (number > picked) for number in order if number != picked]
        return piece if left_over == sorted(left_over) else relax.op.permute_dims(piece, left_over)


def split_dense(mod: tvm.IRModule) -> tvm.IRModule:
    """Split dense layers whose columns have different readers."""
    splitter = _Splitter(count_uses(mod))
    rules: dict[str, Rule] = {"relax.split": splitter.split, "relax.take": splitter.take}
    mod = rewrite_calls(mod, rules)
    for step in (relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination()):
        mod = step(mod)
    return mod
