"""Tensors of one value: followed through the graph, so that masks of ones and biases of zeros cost nothing.

What such a tensor becomes stays an operator (`full`) or a scalar: nothing that is made of no parameter is
ever stored as one. Works on symbolic shapes, where TVM's FoldConstant does nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from kiln.graph.bindings import Array, CallRewriter, const, constant, operator, rewrite_calls

# Operators of which each element depends on the elements at one place: computed once, by numpy.
_POINTWISE: dict[str, Any] = {
    "relax.add": np.add,
    "relax.subtract": np.subtract,
    "relax.multiply": np.multiply,
    "relax.divide": np.true_divide,
    "relax.maximum": np.maximum,
    "relax.minimum": np.minimum,
    "relax.power": np.power,
    "relax.negative": np.negative,
    "relax.abs": np.abs,
    "relax.exp": np.exp,
    "relax.sqrt": np.sqrt,
    "relax.equal": np.equal,
    "relax.not_equal": np.not_equal,
    "relax.greater": np.greater,
    "relax.greater_equal": np.greater_equal,
    "relax.less": np.less,
    "relax.less_equal": np.less_equal,
    "relax.logical_not": np.logical_not,
    "relax.logical_and": np.logical_and,
    "relax.logical_or": np.logical_or,
    "relax.where": np.where,
    "relax.astype": lambda value: value,
}
# Operators that move elements, or reduce equal ones to themselves.
_KEEPING = {
    f"relax.{name}"
    for name in (
        "reshape", "expand_dims", "squeeze", "flatten", "broadcast_to", "permute_dims", "strided_slice",
        "tile", "repeat", "mean", "max", "min",
    )
}  # fmt: skip
_NEUTRAL = {
    "relax.add": (0, 0),
    "relax.subtract": (None, 0),
    "relax.multiply": (1, 1),
    "relax.divide": (None, 1),
}


def uniform(rewriter: CallRewriter, expr: Any) -> Array | None:
    """The one value of all elements of a tensor, as an array without axes; None: they may differ."""
    found = rewriter.definition(expr)
    value = constant(found)
    if value is not None:
        first = value.reshape(-1)[:1]
        return first[0] if value.size and bool((value == first).all()) else None
    name = operator(found)
    if name in ("relax.zeros", "relax.ones"):
        made: Array = np.array(int(name == "relax.ones"), _numpy(str(found.ty.dtype)))
        return made
    if name == "relax.full":
        return constant(rewriter.definition(found.args[1]))
    return None


def _numpy(dtype: str) -> str:
    return "bool" if dtype == "bool" else dtype


def _whole(call: Any, value: Any) -> Any:
    """A tensor of the call's type whose elements all are `value`."""
    dtype = str(call.ty.dtype)
    scalar = const(np.asarray(value).astype(_numpy(dtype)), dtype)
    return scalar if not len(call.ty.shape) else relax.op.full(call.ty.shape, scalar, dtype)


def _pointwise(rewriter: CallRewriter, call: Any) -> Any:
    name = operator(call) or ""
    values = [uniform(rewriter, argument) for argument in call.args]
    if all(value is not None for value in values):
        return _whole(call, _POINTWISE[name](*values))
    if name == "relax.where" and values[0] is not None:
        chosen = call.args[1] if bool(values[0]) else call.args[2]
        return chosen if _same(chosen, call) else None
    for position, value in enumerate(values):
        other = call.args[1 - position] if len(call.args) == 2 else None
        if value is None or other is None or not _same(other, call, by_shape=True):
            continue
        neutral = _NEUTRAL.get(name, (None, None))[position]
        if neutral is not None and bool(value == neutral) and _same(other, call):
            return other
        if len(call.args[position].ty.shape):
            arguments = list(call.args)
            arguments[position] = const(value, str(call.args[position].ty.dtype))
            return relax.Call(call.op, arguments, call.attrs, call.ty_args)
    return None


def _same(expr: Any, call: Any, by_shape: bool = False) -> bool:
    shapes = bool(tvm_ffi.structural_equal(list(expr.ty.shape), list(call.ty.shape)))
    return shapes and (by_shape or str(expr.ty.dtype) == str(call.ty.dtype))


def _keeping(rewriter: CallRewriter, call: Any) -> Any:
    value = uniform(rewriter, call.args[0])
    return None if value is None else _whole(call, value)


def _concat(rewriter: CallRewriter, call: Any) -> Any:
    fields = rewriter.definition(call.args[0])
    values = [uniform(rewriter, part) for part in getattr(fields, "fields", [])]
    if not values or any(value is None or value != values[0] for value in values):
        return None
    return _whole(call, values[0])


def fold_uniform(mod: tvm.IRModule) -> tvm.IRModule:
    """Compute what follows from tensors of one value; where one is an operand, it becomes a scalar."""
    rules = {**dict.fromkeys(_POINTWISE, _pointwise), **dict.fromkeys(_KEEPING, _keeping)}
    return rewrite_calls(mod, {**rules, "relax.concat": _concat})
