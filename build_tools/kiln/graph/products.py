"""ProductsInPlace: matmuls of activations read and write tensors with strides, without transposes.

Attention transposes its operands to (batch, head, row, column) and its result back. A matmul whose operands
or result are transposed becomes relax.einsum on the tensors before, or after, the transpose; the kernel
addresses them with strides. Guarantees: same results; a transpose stays only where another operator reads it
too. Does not change matmuls with constants (dense layers) or with broadcast batch axes.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from kiln.extents import shape_of
from kiln.graph.bindings import CallRewriter, constant, count_uses, integers, operator, rewrite_calls

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def alike(a: list[Any], b: list[Any]) -> bool:
    """Whether two lists of sizes, constant or dynamic, are the same."""
    return bool(tvm_ffi.structural_equal(relax.ShapeExpr(a), relax.ShapeExpr(b)))


def before_transpose(rewriter: CallRewriter, operand: Any, axes: str) -> tuple[Any, str]:
    """(tensor, axes) before the transpose if `operand` is a transpose; otherwise `operand` and `axes`."""
    inner = rewriter.definition(operand)
    if operator(inner) != "relax.permute_dims":
        return operand, axes
    rank = len(axes)
    order = integers(inner.attrs.axes) if inner.attrs.axes is not None else list(range(rank))[::-1]
    before = [""] * rank
    for letter, axis in zip(axes, order, strict=True):
        before[axis % rank] = letter
    return inner.args[0], "".join(before)


def _matmul(rewriter: CallRewriter, call: relax.Call) -> Any:
    left, right = call.args
    if constant(left) is not None or constant(right) is not None or call.attrs.out_dtype is not None:
        return None
    shapes = [list(operand.ty.shape) for operand in (left, right)]
    rank = len(shapes[0])
    if rank < 2 or len(shapes[1]) != rank or str(call.ty.dtype) != "float32":
        return None
    equal_sizes = (
        tvm_ffi.structural_equal(a, b) for a, b in zip(shapes[0][:-2], shapes[1][:-2], strict=True)
    )
    if not all(equal_sizes):
        return None
    batch = _LETTERS[: rank - 2]
    row, column, depth = _LETTERS[rank - 2], _LETTERS[rank - 1], _LETTERS[rank]
    left_data, left_axes = before_transpose(rewriter, left, batch + row + depth)
    right_data, right_axes = before_transpose(rewriter, right, batch + depth + column)
    if left_data.same_as(left) and right_data.same_as(right):
        return None
    return relax.op.einsum(
        relax.Tuple([left_data, right_data]), f"{left_axes},{right_axes}->{batch}{row}{column}"
    )


def _transposed(uses: dict[Any, int]) -> Any:
    def rule(rewriter: CallRewriter, call: relax.Call) -> Any:
        """Merge a transpose into the einsum that computes its operand, if nothing else reads the operand.

        A reshape between them may make one axis of two, such as the heads of all groups.
        """
        inner, operand = rewriter.definition(call.args[0]), call.args[0]
        if uses.get(operand) != 1:
            return None
        joined = None
        if operator(inner) == "relax.reshape" and uses.get(inner.args[0]) == 1:
            joined, inner = inner, rewriter.definition(inner.args[0])
        if operator(inner) != "relax.einsum":
            return None
        operands, result = str(inner.attrs.subscripts).split("->")
        axes = list(result) if joined is None else _joined_axes(result, shape_of(inner), shape_of(joined))
        if axes is None:
            return None
        rank = len(axes)
        order = integers(call.attrs.axes) if call.attrs.axes is not None else list(range(rank))[::-1]
        product = relax.op.einsum(inner.args[0], f"{operands}->{''.join(axes[axis] for axis in order)}")
        if joined is None:
            return product
        return relax.op.reshape(rewriter.emit(product), relax.ShapeExpr(shape_of(call)))

    return rule


def _joined_axes(axes: str, shape: list[Any], joined: list[Any]) -> list[str] | None:
    """The letters of each axis of a reshape of `shape`, with `axes`, that joins two axes; None for others."""
    for first in range(len(joined)):
        before, sizes, after = shape[:first], shape[first : first + 2], shape[first + 2 :]
        is_rest = alike([*before, *after], [*joined[:first], *joined[first + 1 :]])
        if is_rest and all(isinstance(size, int) for size in sizes) and math.prod(sizes) == joined[first]:
            return [*axes[:first], axes[first : first + 2], *axes[first + 2 :]]
    return None


def products_in_place(mod: tvm.IRModule) -> tvm.IRModule:
    """Merge transposes into matmuls of activations, as relax.einsum."""
    mod = rewrite_calls(mod, {"relax.matmul": _matmul})
    mod = relax.transform.DeadCodeElimination()(mod)
    mod = rewrite_calls(mod, {"relax.permute_dims": _transposed(count_uses(mod))})
    return relax.transform.DeadCodeElimination()(mod)
