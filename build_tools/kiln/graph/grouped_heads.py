"""GroupedHeads: products of grouped queries read keys and values as they are, not a copy for each query head.

Exporters repeat the keys and values of each head for the query heads of its group: expand, then reshape to
(batch, heads, keys, size), and perhaps a transpose and a scale. Few queries of a group become rows of one
product with the head that they share. Of many or a dynamic number, for which kernels/cpu/attention.py stores
no scores, the group becomes an axis of its own, along which keys and values do not vary, from the scores to
the result: masks and other operands get that axis too. Guarantees: same results, but for the rounding of a
scale, which the queries get in place of the keys. Applies to a repetition right before the matrices, by a
fixed number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import relax

from kiln.extents import shape_of
from kiln.graph.bindings import CallRewriter, constant, count_uses, integers, operator, rewrite_calls
from kiln.graph.products import alike, before_transpose

_FEW_ROWS = 64  # with fewer queries, attention is never one kernel
_LEAD = "uvwxyz"  # letters of the axes before the heads
_SHAPES = ("relax.reshape", "relax.expand_dims", "relax.squeeze")
_SCALES = ("relax.multiply", "relax.divide")
# What exporters have between scores and values, besides the softmax.
_ELEMENTWISE = frozenset(
    f"relax.{name}"
    for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum", "where", "tanh", "isnan")
)


@dataclass(frozen=True)
class _Shared:
    """The matrices of `data`, each repeated `count` times, perhaps transposed, then scaled.

    The matrices are the last two axes of `data`; copies of a matrix follow each other. factors: the calls
    that scale the matrices.
    """

    data: Any
    count: int
    transposed: bool = False
    factors: tuple[Any, ...] = ()


def _shared(rewriter: CallRewriter, expr: relax.Expr) -> _Shared | None:
    """The repetition of the matrices of `expr`; None where they are not repeated."""
    call = rewriter.definition(expr)
    name = operator(call)
    if name == "relax.broadcast_to":
        return _repeated(call)
    if name in _SHAPES and alike(shape_of(call)[-2:], shape_of(call.args[0])[-2:]):
        return _shared(rewriter, call.args[0])
    if name == "relax.permute_dims":
        rank = len(shape_of(call))
        order = integers(call.attrs.axes) if call.attrs.axes is not None else list(range(rank))[::-1]
        if [axis % rank for axis in order] != [*range(rank - 2), rank - 1, rank - 2]:
            return None
        shared = _shared(rewriter, call.args[0])
        return None if shared is None else replace(shared, transposed=not shared.transposed)
    if _is_scale(call):
        shared = _shared(rewriter, call.args[0])
        return None if shared is None else replace(shared, factors=(*shared.factors, call))
    return None


def _is_scale(call: Any) -> bool:
    """Whether `call` scales a tensor by a constant."""
    value = constant(call.args[1]) if operator(call) in _SCALES else None
    return value is not None and value.size == 1


def _scaled(rewriter: CallRewriter, data: Any, call: relax.Call) -> Any:
    """`data` scaled as by `call`."""
    value = constant(call.args[1])
    assert value is not None
    scalar = relax.const(value.reshape(()), str(value.dtype))
    return rewriter.emit(relax.Call(call.op, [data, scalar], call.attrs))


def _repeated(call: relax.Call) -> _Shared | None:
    """The matrices of a broadcast along the last axis before them."""
    data_shape, result_shape = shape_of(call.args[0]), shape_of(call)
    if (
        len(data_shape) != len(result_shape)
        or len(result_shape) < 3
        or data_shape[-3] != 1
        or not isinstance(result_shape[-3], int)
    ):
        return None
    same_shape = alike(data_shape[:-3] + data_shape[-2:], result_shape[:-3] + result_shape[-2:])
    return _Shared(call.args[0], result_shape[-3]) if same_shape and result_shape[-3] > 1 else None


@dataclass(frozen=True)
class _Grouped:
    """A matmul of `left` by matrices that the heads of a group share."""

    left: Any
    shared: _Shared
    result: list[Any]  # the shape of the matmul

    def product(self, rewriter: CallRewriter, left: Any) -> Any:
        """The matmul in which the rows of all heads of a group are rows of one matrix, as in `left`."""
        *lead, heads, _, _ = self.result
        shared = self.shared
        matrices = shape_of(shared.data)[-2:]
        right = rewriter.emit(
            relax.op.reshape(shared.data, relax.ShapeExpr([*lead, heads // shared.count, *matrices]))
        )
        if shared.transposed:
            last = len(lead) + 2
            right = rewriter.emit(relax.op.permute_dims(right, [*range(last - 1), last, last - 1]))
        for factor in shared.factors:
            left = _scaled(rewriter, left, factor)
        return rewriter.emit(relax.op.matmul(left, right))

    def rows(self, rewriter: CallRewriter) -> Any:
        """`left` (lead, heads, rows, size) with the rows of a group as rows of one matrix."""
        *lead, heads, rows, size = shape_of(self.left)
        count = self.shared.count
        return rewriter.emit(
            relax.op.reshape(self.left, relax.ShapeExpr([*lead, heads // count, rows * count, size]))
        )

    def einsum(self, rewriter: CallRewriter, left: Any, axes: str) -> Any:
        """The product with an axis for the heads of a group: (lead, heads / count, count, rows, columns).

        `axes`: those of `left`, as letters: lead of u, v, …, then k, g, r and d for the depth in any order.
        Transposes of the matrices are not made.
        """
        *lead, heads, _, _ = self.result
        lead_axes, right = _LEAD[: len(lead)], self.shared.data
        shape = [*lead, heads // self.shared.count, *shape_of(right)[-2:]]
        call = rewriter.definition(right)
        if operator(call) in _SHAPES and alike(shape_of(call.args[0]), shape):
            right = call.args[0]  # before the axis along which it is repeated
        else:
            right = rewriter.emit(relax.op.reshape(right, relax.ShapeExpr(shape)))
        stored = f"{lead_axes}k{'cd' if self.shared.transposed else 'dc'}"
        right, stored = before_transpose(rewriter, right, stored)
        for factor in self.shared.factors:
            left = _scaled(rewriter, left, factor)
        operands = relax.Tuple([left, right])
        return rewriter.emit(relax.op.einsum(operands, f"{axes},{stored}->{lead_axes}kgrc"))

    def scores(self, rewriter: CallRewriter) -> Any:
        """The product of `left`, as `einsum` has it, without a transpose of `left` before it."""
        *lead, heads, _, _ = self.result
        data, axes = before_transpose(rewriter, self.left, _LEAD[: len(lead)] + "hrd")
        shape, head = shape_of(data), axes.index("h")
        group = [heads // self.shared.count, self.shared.count]
        split = relax.op.reshape(data, relax.ShapeExpr([*shape[:head], *group, *shape[head + 1 :]]))
        return self.einsum(rewriter, rewriter.emit(split), axes.replace("h", "kg"))


def _grouped(rewriter: CallRewriter, call: Any) -> _Grouped | None:
    if operator(call) != "relax.matmul" or call.attrs.out_dtype is not None:
        return None
    shape, other_shape = (shape_of(operand) for operand in call.args)
    if len(shape) < 3 or len(other_shape) < 3 or not alike(shape[:-2], other_shape[:-2]):
        return None
    shared = _shared(rewriter, call.args[1])
    if shared is None or not isinstance(shape[-3], int) or shape[-3] % shared.count:
        return None
    return _Grouped(call.args[0], shared, shape_of(call))


def _probabilities(rewriter: CallRewriter, expr: relax.Expr, count: int) -> Any:
    """The softmax of the scores of groups of `count` heads, as rows of groups; None for other scores."""
    call = rewriter.definition(expr)
    is_softmax = operator(call) == "relax.nn.softmax" and int(call.attrs.axis) in (
        -1, len(shape_of(call)) - 1,
    )  # fmt: skip
    if is_softmax or _is_scale(call):
        inner = _probabilities(rewriter, call.args[0], count)
        if inner is None:
            return None
        return rewriter.emit(relax.op.nn.softmax(inner)) if is_softmax else _scaled(rewriter, inner, call)
    form = _grouped(rewriter, call)
    if form is None or form.shared.count != count:
        return None
    return form.product(rewriter, form.rows(rewriter))


class _WithGroupAxis:
    """Follow-ups of scores (…, heads, rows, columns), as (…, heads / count, count, rows, columns)."""

    def __init__(self, rewriter: CallRewriter, count: int, heads: int) -> None:
        self.rewriter, self.count, self.heads = rewriter, count, heads
        self._made: dict[Any, Any] = {}

    def of(self, expr: relax.Expr) -> Any:
        """The tensor `expr` with the axis; None if it does not follow element by element from scores."""
        if expr not in self._made:
            self._made[expr] = self._of(expr)
        return self._made[expr]

    def _of(self, expr: relax.Expr) -> Any:
        call = self.rewriter.definition(expr)
        name = operator(call)
        if name == "relax.matmul":
            form = _grouped(self.rewriter, call)
            fits = form is not None and form.shared.count == self.count
            return form.scores(self.rewriter) if form is not None and fits else None
        if name == "relax.nn.softmax":
            inner = self.of(call.args[0]) if int(call.attrs.axis) in (-1, len(shape_of(call)) - 1) else None
            return None if inner is None else self.rewriter.emit(relax.op.nn.softmax(inner))
        if name not in _ELEMENTWISE:
            return None
        shape = shape_of(call)
        follow = [self.of(arg) if alike(shape_of(arg), shape) else None for arg in call.args]
        if all(item is None for item in follow):
            return None
        args = [
            self._operand(arg) if item is None else item for item, arg in zip(follow, call.args, strict=True)
        ]
        if any(arg is None for arg in args):
            return None
        return self.rewriter.emit(relax.Call(call.op, args, call.attrs))

    def _operand(self, expr: relax.Expr) -> Any:
        """An operand that does not follow from scores, such as a mask; None if its heads do not fit."""
        shape = shape_of(expr)
        if len(shape) < 3:
            return expr
        *lead, heads, rows, columns = shape
        if heads not in (1, self.heads):
            return None
        group = [1, 1] if heads == 1 else [self.heads // self.count, self.count]
        value, shape = constant(expr), [*lead, *group, rows, columns]
        if value is not None:
            return relax.const(value.reshape(shape), str(value.dtype))
        return self.rewriter.emit(relax.op.reshape(expr, relax.ShapeExpr(shape)))


def _matmul(uses: dict[Any, int]) -> Any:
    def rule(rewriter: CallRewriter, call: Any) -> Any:
        """A matmul is grouped if it has few rows, or together with the scores that its rows follow from."""
        form = _grouped(rewriter, call)
        if form is None:
            return None
        rows, left = form.result[-2], None
        if isinstance(rows, int) and rows < _FEW_ROWS:
            left = form.rows(rewriter)
        elif operator(rewriter.definition(form.left)) == "relax.nn.softmax":
            left = _probabilities(rewriter, form.left, form.shared.count)
        if left is not None:
            return relax.op.reshape(form.product(rewriter, left), relax.ShapeExpr(form.result))
        if uses.get(rewriter.original.args[0]) != 1:  # else they would be computed twice
            return None
        *lead, heads, _, _ = form.result
        left = _WithGroupAxis(rewriter, form.shared.count, heads).of(form.left)
        if left is None or operator(rewriter.definition(left)) == "relax.einsum":
            return None
        result = form.einsum(rewriter, left, _LEAD[: len(lead)] + "kgrd")
        return relax.op.reshape(result, relax.ShapeExpr(form.result))

    return rule


def grouped_heads(mod: tvm.IRModule) -> tvm.IRModule:
    """Multiply grouped queries by the keys and values that they share."""
    mod = rewrite_calls(mod, {"relax.matmul": _matmul(count_uses(mod))})
    return relax.transform.DeadCodeElimination()(mod)
