"""IntegerProducts: matmuls of two quantised activations, as in attention, are computed on the integers.

    sum_k s_a (a - z_a) s_b (b - z_b) = s_a s_b (sum a b - z_a sum b - z_b sum (a - z_a))

with sums in int32. The second and third sum are small tensors, a number for each column and each row, left
out where the zero point is 0. The product itself is a PrimFunc on 8-bit operands: relax.einsum would
add up in 8 bits. Exact up to the rounding of the scale, in float32.
Needs: the form of products_in_place; `reach`: the greatest value of a size. Guarantees: other products, such
as those with broadcast batch axes or with more than 2^15 terms, stay in float.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, te, tirx

from kiln.graph.bindings import CallRewriter, const, constant, operator, rewrite_calls
from kiln.lower.dims import Dims
from kiln.lower.linear_sums import dequantised
from kiln.opinfo import attach

_MOST_TERMS = 1 << 15  # of 8 by 8 bits, in int32
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
Reach = Callable[[Any], int]


def integer_products(model: str) -> Callable[[tvm.IRModule], tvm.IRModule]:
    """The pass for the model named `model`."""

    def run(mod: tvm.IRModule) -> tvm.IRModule:
        reach = Dims(model, mod).greatest

        def rule(rewriter: CallRewriter, call: Any) -> Any:
            return _product(rewriter, call, reach)

        mod = rewrite_calls(mod, {"relax.einsum": rule, "relax.matmul": rule})
        return relax.transform.DeadCodeElimination()(mod)

    return run


def _levels(rewriter: CallRewriter, expr: Any) -> tuple[Any, float, int] | None:
    """(data, scale, zero point) of dequantised 8-bit activations with one scale; else None."""
    levels = dequantised(rewriter, expr)
    if levels is None or constant(rewriter.definition(levels[0])) is not None:
        return None
    return levels


def _axes(call: Any) -> tuple[Any, Any, str] | None:
    """Both operands of a product over one axis, and its subscripts as for an einsum; None for other calls."""
    if operator(call) == "relax.einsum":
        fields = list(call.args[0].fields) if isinstance(call.args[0], relax.Tuple) else []
        if len(fields) != 2:
            return None
        return fields[0], fields[1], str(call.attrs.subscripts).replace(" ", "")
    left, right = call.args
    shapes = [list(operand.ty.shape) for operand in (left, right)]
    rank = len(shapes[0])
    if rank < 2 or len(shapes[1]) != rank:
        return None
    pairs = zip(shapes[0][:-2], shapes[1][:-2], strict=True)
    if not all(tvm_ffi.structural_equal(a, b) for a, b in pairs):
        return None
    batch, row, column, depth = _LETTERS[: rank - 2], _LETTERS[rank - 2], _LETTERS[rank - 1], _LETTERS[rank]
    return left, right, f"{batch}{row}{depth},{batch}{depth}{column}->{batch}{row}{column}"


def _product(rewriter: CallRewriter, call: Any, reach: Reach) -> Any:
    axes_found = _axes(call) if str(call.ty.dtype) == "float32" else None
    if axes_found is None:
        return None
    inputs, _, result = axes_found[2].partition("->")
    axes = inputs.split(",")
    summed = sorted(set("".join(axes)) - set(result))
    if len(summed) != 1 or not result or any(summed[0] not in letters for letters in axes):
        return None
    if any(len(set(letters)) != len(letters) for letters in (*axes, result)):
        return None
    left, right = (_levels(rewriter, operand) for operand in axes_found[:2])
    if left is None or right is None:
        return None
    depth = left[0].ty.shape[axes[0].index(summed[0])]
    if reach(depth) > _MOST_TERMS:
        return None
    op, emit = relax.op, rewriter.emit
    if result[-1] in axes[0]:
        left = _signed(rewriter, *left)
    else:
        right = _signed(rewriter, *right)
    product = emit(_sum_of_products(rewriter, left[0], right[0], axes, result, summed[0]))
    for this, other, letters in ((left, right, axes[1]), (right, left, axes[0])):
        if this[2] == 0:
            continue
        # Rows: of the values less their zero point, columns: of the values as they are.
        less = left[2] if other is left else 0
        sums = _sums(rewriter, other[0], less, letters, summed[0], result)
        product = emit(op.subtract(product, emit(op.multiply(sums, const(this[2], "int32")))))
    return op.multiply(emit(op.astype(product, "float32")), const(left[1] * right[1], "float32"))


def _signed(rewriter: CallRewriter, data: Any, scale: float, zero: int) -> tuple[Any, float, int]:
    """The operand as int8, which the instructions for dot products want of columns."""
    if str(data.ty.dtype) == "int8":
        return data, scale, zero
    op, emit = relax.op, rewriter.emit
    moved = emit(op.subtract(emit(op.astype(data, "int16")), const(128, "int16")))
    return emit(op.astype(moved, "int8")), scale, zero - 128


def _sum_of_products(
    rewriter: CallRewriter, left: Any, right: Any, axes: list[str], result: str, summed: str
) -> Any:
    """The call of a PrimFunc that computes the einsum of 8-bit operands in int32, with its op info."""

    def compute(a: Any, b: Any) -> Any:
        sizes = dict(zip(axes[0] + axes[1], [*a.shape, *b.shape], strict=True))
        depth = te.reduce_axis((0, sizes[summed]), name="k")

        def element(*indices: Any) -> Any:
            index = {**dict(zip(result, indices, strict=True)), summed: depth}
            operands = (
                tirx.Cast("int32", tensor(*(index[letter] for letter in letters)))
                for tensor, letters in zip((a, b), axes, strict=True)
            )
            return te.sum(next(operands) * next(operands), axis=depth)

        return te.compute([sizes[letter] for letter in result], element, name="einsum")

    call_tir = rewriter.builder_.call_te(compute, left, right, primfunc_name_hint="einsum")
    variable, module = call_tir.args[0], rewriter.builder_.get()
    subscripts = f"{axes[0]},{axes[1]}->{result}"
    info = {
        "name": "einsum", "attrs": {"subscripts": subscripts}, "out_dtype": "int32",
        "args": [{"param": 0}, {"param": 1}],
    }  # fmt: skip
    rewriter.builder_.update_func(variable, attach.with_ops(module[variable], [info]))
    return call_tir


def _sums(rewriter: CallRewriter, data: Any, less: int, letters: str, summed: str, result: str) -> Any:
    """Sums of data - less along the axis `summed`, in int32, with axes of size 1 so that they broadcast."""
    op, emit = relax.op, rewriter.emit
    wide = emit(op.astype(data, "int32"))
    if less:
        wide = emit(op.subtract(wide, const(less, "int32")))
    sums = emit(op.sum(wide, [letters.index(summed)]))
    axes_left = letters.replace(summed, "")
    order = sorted(range(len(axes_left)), key=lambda position: result.index(axes_left[position]))
    if order != sorted(order):
        sums = emit(op.permute_dims(sums, order))
    sizes = dict(zip(letters, data.ty.shape, strict=True))
    shape = [sizes[letter] if letter in axes_left else tirx.IntImm("int64", 1) for letter in result]
    return emit(op.reshape(sums, relax.ShapeExpr(shape)))
