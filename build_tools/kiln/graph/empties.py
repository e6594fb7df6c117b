"""Remove tensors without elements, such as the cache of a decoder before its first step, from the graph.

Results without elements are not computed. A result computed from empty operands becomes a constant (a matmul
or a sum over an empty axis is 0), or is computed from the other operands (a concat without its empty
operands). Guarantees: no operator reads a tensor without elements, except those that count a size. Raises
KilnError for operators whose result is undefined for an empty operand.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx

from kiln.callbacks import post_order_visit
from kiln.errors import KilnError
from kiln.frontend.counted.sizes import decides_sizes
from kiln.graph.bindings import CallRewriter, const, operator, rewrite_calls

# Result of a reduction over an empty axis.
_OF_NOTHING = {"relax.sum": 0, "relax.matmul": 0, "relax.prod": 1, "relax.einsum": 0}
# Operators that return their first operand unchanged where an update is empty.
_UPDATES = ("relax.scatter_elements", "relax.scatter_nd", "relax.index_put", "relax.slice_scatter")
# Operators that are defined for an empty operand, as they read no element.
_SIZES = ("relax.shape_of", "relax.tensor_to_shape", "relax.full_like", "relax.zeros_like", "relax.ones_like")


def without_empties(mod: tvm.IRModule) -> tvm.IRModule:
    """Remove tensors without elements, see the module's docstring for errors."""
    names: set[str] = set()
    empties: list[Any] = []

    def note(expr: relax.Expr) -> None:
        names.add(operator(expr) or "")
        if isinstance(expr, relax.Expr) and is_empty(expr):
            empties.append(expr)

    for _, func in mod.functions_items():
        if isinstance(func, relax.Function):
            post_order_visit(func, note)
            empties += [parameter for parameter in func.params if is_empty(parameter)]
    if not empties:
        return mod
    refused: list[str] = []  # exceptions must not be raised inside TVM's visitor

    def rule(rewriter: CallRewriter, call: Any) -> Any:
        replacement = _without(rewriter, call)
        if isinstance(replacement, str):
            refused.append(replacement)
            return None
        return replacement

    mod = rewrite_calls(mod, dict.fromkeys(names - {""}, rule))
    if refused:
        raise KilnError(
            f"operator '{refused[0]}' has no value for a tensor without elements, where a dimension is 0; "
            "give it a greater 'min' in 'dims'"
        )
    return mod


def is_empty(expr: relax.Expr) -> bool:
    """Whether a tensor is known to have no elements."""
    return _has_zero(expr.ty)


def _has_zero(ty: Any) -> bool:
    """Whether a type is that of a tensor with a size of 0."""
    shape = ty.shape if isinstance(ty, relax.TensorType) else None
    return shape is not None and any(isinstance(size, tirx.IntImm) and int(size) == 0 for size in shape)


def _without(rewriter: CallRewriter, call: Any) -> Any:
    """The replacement of `call`; None to keep it; the operator's name, a str, if its result is undefined."""
    name = operator(call) or ""
    if is_empty(call):
        if decides_sizes(call):  # the steps that count them run, whatever the tensor holds
            return None
        is_constant = name in ("relax.zeros", "relax.full")
        return None if is_constant else relax.op.zeros(call.ty.shape, str(call.ty.dtype))
    if name == "relax.concat":
        return _concat(rewriter, call)
    if name in _SIZES or not any(is_empty(argument) for argument in call.args):
        return None
    if isinstance(call.ty, relax.TupleType) and all(_has_zero(field) for field in call.ty.fields):
        fields = [relax.op.zeros(field.shape, str(field.dtype)) for field in call.ty.fields]
        return relax.Tuple([rewriter.builder_.emit(field) for field in fields])
    if name == "relax.nn.batch_norm" and not call.attrs.training:
        return relax.Tuple(
            [relax.op.zeros(call.args[0].ty.shape, str(call.args[0].ty.dtype)), *call.args[3:]]
        )
    if name in _OF_NOTHING:
        return _filled(call, _OF_NOTHING[name])
    if name in _UPDATES and not is_empty(call.args[0]):
        return call.args[0]
    if name == "relax.nn.pad" and str(call.attrs.pad_mode) == "constant":
        return _filled(call, float(call.attrs.pad_value))
    return name.removeprefix("relax.")


def _concat(rewriter: CallRewriter, call: relax.Call) -> Any:
    fields = list(getattr(rewriter.definition(call.args[0]), "fields", []))
    non_empty = [field for field in fields if not is_empty(field)]
    if len(non_empty) == len(fields):
        return None
    return non_empty[0] if len(non_empty) == 1 else relax.op.concat(non_empty, call.attrs.axis)


def _filled(call: relax.Call, value: float) -> Any:
    dtype = str(call.ty.dtype)
    fill = const(value, dtype)
    return relax.op.full(call.ty.shape, fill, dtype) if len(call.ty.shape) else fill
