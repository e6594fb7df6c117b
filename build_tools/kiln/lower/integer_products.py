"""IntegerProducts: matmuls of two quantised activations, as in attention, are computed on the integers.

    sum_k s_a (a - z_a) s_b (b - z_b) = s_a s_b (sum a b - z_a sum b - z_b sum (a - z_a))

with sums in int32, or int64 where that may not suffice. The second and third sum are small tensors, a number
for each column and each row, left out where the zero point is 0. The product itself is a PrimFunc on operands
of 8 or 16 bits: relax.einsum would add up in as many. An operand may be multiplied by a number before, which
multiplies its scale. Batch axes that broadcast are missing in one operand. Exact up to the rounding of the
scale, in float32.
Needs: the form of products_in_place; `reach`: the greatest value of a size. Other products stay in float.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, te, tirx

from kiln.extents import shape_of
from kiln.graph.bindings import CallRewriter, const, constant, operator, rewrite_calls
from kiln.graph.quantised_operands import MOST, scaled_levels
from kiln.lower.dims import Dims
from kiln.opinfo import attach

_LIMIT = 1 << 31
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
Reach = Callable[[Any], int]


def integer_products(model: str) -> Callable[[tvm.IRModule], tvm.IRModule]:
    """Compute matmuls of two dequantised activations on their integers; `model`: the name, for errors."""

    def run(mod: tvm.IRModule) -> tvm.IRModule:
        reach = Dims(model, mod).greatest

        def rule(rewriter: CallRewriter, call: Any) -> Any:
            return _product(rewriter, call, reach)

        mod = rewrite_calls(mod, {"relax.einsum": rule, "relax.matmul": rule})
        return relax.transform.DeadCodeElimination()(mod)

    return run


def _levels(rewriter: CallRewriter, expr: relax.Expr) -> tuple[Any, float, int] | None:
    """(data, scale, zero point) of dequantised activations with one scale; else None."""
    levels = scaled_levels(rewriter, expr)
    if levels is None or constant(rewriter.definition(levels.data)) is not None:
        return None
    return levels.data, float(levels.scale[0]), levels.zero_point


@dataclass(frozen=True)
class _Product:
    """A product over one axis: operands, the letters of their axes and of those of the result.

    `shapes`: sizes with which each operand is viewed first, without the axes along which it is broadcast;
    None for an operand that stays as it is.
    """

    operands: tuple[Any, Any]
    subscripts: str
    shapes: tuple[list[Any] | None, list[Any] | None] = (None, None)


def _product_of(call: Any) -> _Product | None:
    """The product that an einsum or a matmul computes; None for other calls."""
    if operator(call) == "relax.einsum":
        fields = list(call.args[0].fields) if isinstance(call.args[0], relax.Tuple) else []
        if len(fields) != 2:
            return None
        return _Product((fields[0], fields[1]), str(call.attrs.subscripts).replace(" ", ""))
    shapes = [shape_of(operand) for operand in call.args]
    if min(map(len, shapes)) < 2:
        return None
    result, sizes = shape_of(call), [shape[:-2] for shape in shapes]
    batch = _LETTERS[: len(result) - 2]
    # The batch axes of each operand: one along which it is broadcast is missing.
    kept = [
        [letter for letter, whole, size in _aligned(batch, result, own) if _same(size, whole)]
        for own in sizes
    ]
    views: list[list[Any] | None] = [
        None if len(letters) == len(shape) - 2 else [
            *(size for letter, size in zip(batch, result, strict=False) if letter in letters), *shape[-2:]
        ]
        for letters, shape in zip(kept, shapes, strict=True)
    ]  # fmt: skip
    left, right = ("".join(letters) for letters in kept)
    if set(left + right) != set(batch):
        return None
    subscripts = f"{left}yx,{right}xz->{batch}yz"
    return _Product((call.args[0], call.args[1]), subscripts, (views[0], views[1]))


def _aligned(batch: str, result: list[Any], own: list[Any]) -> list[tuple[str, Any, Any]]:
    """By batch axis that an operand has: its letter, its size in the result, and its size in the operand."""
    first = len(batch) - len(own)
    return list(zip(batch[first:], result[first:-2], own, strict=True))


def _same(size: Any, other: Any) -> bool:
    if isinstance(size, int) or isinstance(other, int):
        return isinstance(size, int) and isinstance(other, int) and size == other
    return bool(tvm_ffi.structural_equal(size, other))


def _product(rewriter: CallRewriter, call: relax.Call, reach: Reach) -> Any:
    found = _product_of(call) if str(call.ty.dtype) == "float32" else None
    if found is None:
        return None
    inputs, _, result = found.subscripts.partition("->")
    axes = inputs.split(",")
    summed = sorted(set("".join(axes)) - set(result))
    if len(summed) != 1 or not result or any(summed[0] not in letters for letters in axes):
        return None
    if any(len(set(letters)) != len(letters) for letters in (*axes, result)):
        return None
    left, right = (_levels(rewriter, operand) for operand in found.operands)
    if left is None or right is None:
        return None
    op, emit = relax.op, rewriter.emit
    if result[-1] in axes[0]:
        left = _signed(rewriter, *left)
    else:
        right = _signed(rewriter, *right)
    left, right = (
        operand if shape is None else (emit(op.reshape(operand[0], _sizes(shape))), *operand[1:])
        for operand, shape in zip((left, right), found.shapes, strict=True)
    )
    kind = _type_of_sums(left, right, reach(left[0].ty.shape[axes[0].index(summed[0])]))
    product = emit(_sum_of_products(rewriter, (left[0], right[0]), axes, result, kind))
    for this, other, letters in ((left, right, axes[1]), (right, left, axes[0])):
        if this[2] == 0:
            continue
        # The sums of rows are of values minus their zero point, those of columns of the plain values.
        less = left[2] if other is left else 0
        sums = _sums(rewriter, other[0], less, (letters, result), kind)
        product = emit(op.subtract(product, emit(op.multiply(sums, const(this[2], kind)))))
    return op.multiply(emit(op.astype(product, "float32")), const(left[1] * right[1], "float32"))


def _type_of_sums(left: tuple[Any, float, int], right: tuple[Any, float, int], terms: int) -> str:
    """The type that holds the sums of `terms` products, and the numbers that are subtracted from them."""
    most = [MOST[str(operand[0].ty.dtype)] for operand in (left, right)]
    points = [abs(operand[2]) for operand in (left, right)]
    return "int32" if terms * (most[0] + points[0]) * (most[1] + points[1]) < _LIMIT else "int64"


def _sizes(shape: list[Any]) -> Any:
    sizes = [tirx.IntImm("int64", size) if isinstance(size, int) else size for size in shape]
    return relax.ShapeExpr(sizes)


def _signed(rewriter: CallRewriter, data: Any, scale: float, zero: int) -> tuple[Any, float, int]:
    """The operand with uint8 as int8, the type that instructions for dot products require of columns."""
    if str(data.ty.dtype) != "uint8":
        return data, scale, zero
    op, emit = relax.op, rewriter.emit
    moved = emit(op.subtract(emit(op.astype(data, "int16")), const(128, "int16")))
    return emit(op.astype(moved, "int8")), scale, zero - 128


def _sum_of_products(
    rewriter: CallRewriter, operands: tuple[Any, Any], axes: list[str], result: str, kind: str
) -> Any:
    """The call of a PrimFunc that computes the einsum of `operands` in type `kind`, with its op info."""
    (summed,) = set(axes[0]) - set(result)

    def compute(a: Any, b: Any) -> Any:
        sizes = dict(zip(axes[0] + axes[1], [*a.shape, *b.shape], strict=True))
        depth = te.reduce_axis((0, sizes[summed]), name="k")

        def element(*indices: Any) -> Any:
            index = {**dict(zip(result, indices, strict=True)), summed: depth}
            factors = (
                tirx.Cast(kind, tensor(*(index[letter] for letter in letters)))
                for tensor, letters in zip((a, b), axes, strict=True)
            )
            return te.sum(next(factors) * next(factors), axis=depth)

        return te.compute([sizes[letter] for letter in result], element, name="einsum")

    call_tir = rewriter.builder_.call_te(compute, *operands, primfunc_name_hint="einsum")
    variable, module = call_tir.args[0], rewriter.builder_.get()
    subscripts = f"{axes[0]},{axes[1]}->{result}"
    info = {
        "name": "einsum", "attrs": {"subscripts": subscripts}, "out_dtype": kind,
        "args": [{"param": 0}, {"param": 1}],
    }  # fmt: skip
    rewriter.builder_.update_func(variable, attach.with_ops(module[variable], [info]))
    return call_tir


def _sums(rewriter: CallRewriter, data: Any, less: int, axes: tuple[str, str], kind: str) -> Any:
    """Sums of data - less in type `kind`, with axes of size 1 so that they broadcast.

    axes: the letters of the axes of `data`, and of the result; the axis that is missing there is summed.
    """
    (letters, result), op, emit = axes, relax.op, rewriter.emit
    (summed,) = set(letters) - set(result)
    wide = emit(op.astype(data, kind))
    if less:
        wide = emit(op.subtract(wide, const(less, kind)))
    sums = emit(op.sum(wide, [letters.index(summed)]))
    axes_left = letters.replace(summed, "")
    order = sorted(range(len(axes_left)), key=lambda position: result.index(axes_left[position]))
    if order != sorted(order):
        sums = emit(op.permute_dims(sums, order))
    sizes = dict(zip(letters, data.ty.shape, strict=True))
    shape = [sizes[letter] if letter in axes_left else tirx.IntImm("int64", 1) for letter in result]
    return emit(op.reshape(sums, relax.ShapeExpr(shape)))
