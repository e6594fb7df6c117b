"""Constant folding of uniform tensors, whose elements are all equal, such as a mask of ones or a zero bias.

A folded tensor is represented by the operator `full` or by a scalar, so it is never stored as a parameter.
The pass handles symbolic shapes, where TVM's FoldConstant does nothing.

Zeros are propagated through products, convolutions and sums, with 0 * x taken as 0. In floating point this
holds for finite x only (0 * inf is NaN): operators on a constant that is not finite are left unchanged, and
activations are assumed to be finite. Operators on constants alone, such as a weight times a known mask, are
evaluated at build time.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx

from kiln.callbacks import post_order_visit
from kiln.graph.bindings import Array, CallRewriter, Rule, const, constant, operator, rewrite_calls
from kiln.specialize.symbols import finished

# Elementwise operators, with the NumPy function that evaluates them on a single value.
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
    "relax.nn.relu": lambda value: np.maximum(value, 0),
    "relax.tanh": np.tanh,
    "relax.square": np.square,
    "relax.sign": np.sign,
    "relax.floor": np.floor,
    "relax.ceil": np.ceil,
    "relax.round": np.rint,
}
# Operators that map a uniform tensor to a uniform tensor of the same value: moves, and max, min, mean.
_VALUE_KEEPING = {
    f"relax.{name}"
    for name in (
        "reshape", "expand_dims", "squeeze", "flatten", "broadcast_to", "permute_dims", "strided_slice",
        "tile", "repeat", "mean", "max", "min", "take", "flip", "gather_elements", "gather_nd",
        "nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d",
    )
}  # fmt: skip
# _PRODUCTS: result 0 where either of two operands is 0. _SUMS: result 0 where the first operand is 0.
_PRODUCTS = {
    f"relax.{name}"
    for name in (
        "multiply", "matmul", "nn.conv1d", "nn.conv2d", "nn.conv3d", "nn.conv1d_transpose",
        "nn.conv2d_transpose", "nn.conv3d_transpose",
    )
}  # fmt: skip
_SUMS = {f"relax.{name}" for name in ("sum", "cumsum", "nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d")}
# Operators that create a tensor. They are not evaluated at build time, as the result would be stored.
_CREATING = {
    f"relax.{name}"
    for name in (
        "full",
        "zeros",
        "ones",
        "arange",
        "full_like",
        "zeros_like",
        "ones_like",
        "eye",
        "tril",
        "triu",
    )
}
# By operator, the neutral element as left and as right operand; None: there is none.
_NEUTRAL = {
    "relax.add": (0, 0),
    "relax.subtract": (None, 0),
    "relax.multiply": (1, 1),
    "relax.divide": (None, 1),
}


def uniform(rewriter: CallRewriter, expr: relax.Expr) -> Array | None:
    """The common value of all elements of a tensor, as an array without axes; None: they may differ."""
    definition = rewriter.definition(expr)
    value = constant(definition)
    if value is not None:
        first = value.reshape(-1)[:1]
        return first[0] if value.size and bool((value == first).all()) else None
    name = operator(definition)
    if name in ("relax.zeros", "relax.ones"):
        filled: Array = np.array(int(name == "relax.ones"), _numpy_type(str(definition.ty.dtype)))
        return filled
    if name == "relax.full":
        return constant(rewriter.definition(definition.args[1]))
    return None


def _numpy_type(dtype: str) -> str:
    return "bool" if dtype == "bool" else dtype


def _uniform_result(call: relax.Call, value: Any) -> Any:
    """A uniform tensor of `value` with the shape and type of the call's result."""
    dtype = str(call.ty.dtype)
    scalar = const(np.asarray(value).astype(_numpy_type(dtype)), dtype)
    return scalar if not len(call.ty.shape) else relax.op.full(call.ty.shape, scalar, dtype)


def _is_zero(rewriter: CallRewriter, expr: relax.Expr) -> bool:
    value = uniform(rewriter, expr)
    return value is not None and not value.astype(bool)


def _is_finite(rewriter: CallRewriter, expr: relax.Expr) -> bool:
    """Whether a constant is finite; an expression that is not a constant is assumed to be finite."""
    value = constant(rewriter.definition(expr))
    return value is None or value.dtype.kind != "f" or bool(np.isfinite(value).all())


def _product(rewriter: CallRewriter, call: relax.Call) -> Any:
    """A tensor of zeros if one operand is 0 and the other one is finite; None otherwise."""
    pairs = ((call.args[0], call.args[1]), (call.args[1], call.args[0]))
    zero = any(_is_zero(rewriter, operand) and _is_finite(rewriter, other) for operand, other in pairs)
    return _uniform_result(call, 0) if zero else None


def _sum(rewriter: CallRewriter, call: relax.Call) -> Any:
    return _uniform_result(call, 0) if _is_zero(rewriter, call.args[0]) else None


def _einsum(rewriter: CallRewriter, call: relax.Call) -> Any:
    fields = list(getattr(rewriter.definition(call.args[0]), "fields", []))
    zero = [_is_zero(rewriter, field) for field in fields]
    others = (field for field, is_zero in zip(fields, zero, strict=True) if not is_zero)
    return (
        _uniform_result(call, 0)
        if any(zero) and all(_is_finite(rewriter, field) for field in others)
        else None
    )


def _padded(rewriter: CallRewriter, call: relax.Call) -> Any:
    value = uniform(rewriter, call.args[0])
    constant_mode = str(call.attrs.pad_mode) == "constant"
    pads_value = value is not None and (not constant_mode or float(value) == float(call.attrs.pad_value))
    return _uniform_result(call, value) if pads_value else None


def _evaluated(rewriter: CallRewriter, call: relax.Call) -> Any:
    """The value of a call whose operands are all constants, evaluated at build time.

    None where an operand is not a constant, a size is dynamic, no operand has axes, or the result needs more
    bytes than the operands.
    """
    values = [constant(rewriter.definition(argument)) for argument in call.args]
    constants = [value for value in values if value is not None]
    if (
        len(constants) < len(values)
        or not any(value.ndim for value in constants)
        or not isinstance(call.ty, relax.TensorType)
    ):
        return None
    if any(not isinstance(size, tirx.IntImm) for size in call.ty.shape):
        return None
    nbytes = (
        np.prod([int(size) for size in call.ty.shape]) * np.dtype(_numpy_type(str(call.ty.dtype))).itemsize
    )
    if nbytes > sum(value.nbytes for value in constants):
        return None
    arguments = [const(value, str(value.dtype)) for value in constants]
    builder = relax.BlockBuilder()
    with builder.function("main", []):
        with builder.dataflow():
            result = builder.emit_output(relax.Call(call.op, arguments, call.attrs, call.ty_args))
        builder.emit_func_output(result)
    body = finished(relax.transform.FoldConstant()(builder.get()))["main"].body
    bound = {binding.var: binding.value for block in body.blocks for binding in block.bindings}
    value = constant(bound.get(body.body, body.body))
    return None if value is None else const(value, str(call.ty.dtype))


def _pointwise(rewriter: CallRewriter, call: Any) -> Any:
    """Simplify an elementwise call with uniform operands; None where nothing can be simplified.

    All operands uniform: the result is uniform. A neutral operand: the other operand. Otherwise a uniform
    operand with axes becomes a scalar, where the shape of the result stays the same.
    """
    name = operator(call) or ""
    values = [uniform(rewriter, argument) for argument in call.args]
    if all(value is not None for value in values):
        return _uniform_result(call, _POINTWISE[name](*values))
    if name == "relax.where" and values[0] is not None:
        chosen = call.args[1] if bool(values[0]) else call.args[2]
        return chosen if _same_type(chosen, call) else None
    for position, value in enumerate(values):
        other = call.args[1 - position] if len(call.args) == 2 else None
        if value is None or other is None or not _same_type(other, call, by_shape=True):
            continue
        neutral = _NEUTRAL.get(name, (None, None))[position]
        if neutral is not None and bool(value == neutral) and _same_type(other, call):
            return other
        if len(call.args[position].ty.shape):
            arguments = list(call.args)
            arguments[position] = const(value, str(call.args[position].ty.dtype))
            return relax.Call(call.op, arguments, call.attrs, call.ty_args)
    return None


def _same_type(expr: relax.Expr, call: relax.Call, by_shape: bool = False) -> bool:
    shapes = bool(tvm_ffi.structural_equal(list(expr.ty.shape), list(call.ty.shape)))
    return shapes and (by_shape or str(expr.ty.dtype) == str(call.ty.dtype))


def _keeping(rewriter: CallRewriter, call: relax.Call) -> Any:
    value = uniform(rewriter, call.args[0])
    return None if value is None else _uniform_result(call, value)


def _concat(rewriter: CallRewriter, call: relax.Call) -> Any:
    fields = rewriter.definition(call.args[0])
    values = [uniform(rewriter, part) for part in getattr(fields, "fields", [])]
    if not values or any(value is None or value != values[0] for value in values):
        return None
    return _uniform_result(call, values[0])


def fold_uniform(mod: tvm.IRModule) -> tvm.IRModule:
    """Fold operators on uniform tensors; a uniform operand of an elementwise operator becomes a scalar."""
    rules: dict[str, list[Rule]] = {name: [] for name in _operators(mod)}
    for names, rule in (
        (_PRODUCTS, _product),
        (_SUMS, _sum),
        (_POINTWISE, _pointwise),
        (_VALUE_KEEPING, _keeping),
        (("relax.concat",), _concat),
        (("relax.einsum",), _einsum),
        (("relax.nn.pad",), _padded),
        (rules.keys() - _CREATING, _evaluated),
    ):
        for name in names:
            rules.setdefault(name, []).append(rule)
    return rewrite_calls(
        mod, {name: functools.partial(_first_replacement, tried_rules) for name, tried_rules in rules.items()}
    )


def _first_replacement(rules: Sequence[Rule], rewriter: CallRewriter, call: Any) -> Any:
    """The replacement of `call` by the first rule that applies; None if no rule applies."""
    return next((replacement for rule in rules if (replacement := rule(rewriter, call)) is not None), None)


def _operators(mod: tvm.IRModule) -> set[str]:
    names: set[str] = set()
    for _, func in mod.functions_items():
        if isinstance(func, relax.Function):
            post_order_visit(func, lambda expr: names.add(operator(expr) or ""))
    return names - {""}
