"""Constants: simple operators of constants are computed by NumPy, the others by TVM.

relax.transform.FoldConstant compiles a function for each operator and shape, which takes a minute for the
hundreds of scales and biases of a quantised model, and it legalises every operator of the module, which takes
a millisecond for each. Guarantees: results are unchanged; operators other than those of _RULES are left to
FoldConstant, which runs only where it finds something to fold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax

from kiln.callbacks import post_order_visit
from kiln.graph.bindings import Array, CallRewriter, constant, integers, operator, rewrite_calls


def _shaped(call: Any, value: Array) -> Array:
    return value.reshape([int(size) for size in call.ty.shape])


def _turned(call: Any, value: Array) -> Array:
    return np.transpose(value, None if call.attrs.axes is None else integers(call.attrs.axes))


def _dequantised(call: Any, data: Array, scale: Array, zero: Array) -> Array:
    """(data - zero) * scale in float32."""
    axis = int(call.attrs.axis) % max(data.ndim, 1)
    sizes = [-1 if index == axis else 1 for index in range(data.ndim)]
    factors = [operand.reshape(sizes if operand.size > 1 else ()) for operand in (scale, zero)]
    centred = data.astype("int64") - factors[1].astype("int64")
    values: Array = centred.astype("float32") * factors[0].astype("float32")
    return values


def _pair(function: Callable[[Any, Any], Any]) -> Callable[..., Array]:
    def compute(_call: Any, left: Array, right: Array) -> Array:
        values: Array = function(left, right)
        return values

    return compute


_RULES: dict[str, Callable[..., Array]] = {
    "relax.add": _pair(np.add),
    "relax.astype": lambda call, value: value.astype(str(call.ty.dtype)),
    "relax.dequantize": _dequantised,
    "relax.expand_dims": _shaped,
    "relax.multiply": _pair(np.multiply),
    "relax.permute_dims": _turned,
    "relax.reshape": lambda call, value, *_: _shaped(call, value),
    "relax.squeeze": _shaped,
    "relax.subtract": _pair(np.subtract),
}
_TYPES = ("float32", "int8", "uint8", "int16", "uint16", "int32", "int64")


def _fold(rewriter: CallRewriter, call: Any) -> Any:
    """The constant that `call` computes, or None."""
    tensors = [argument for argument in call.args if isinstance(argument.ty, relax.TensorType)]
    values = [constant(rewriter.definition(argument)) for argument in tensors]
    dtype = str(getattr(call.ty, "dtype", ""))
    if not values or dtype not in _TYPES or any(each is None for each in values):
        return None
    if operator(call) == "relax.astype" and str(tensors[0].ty.dtype) not in _TYPES:
        return None
    if operator(call) == "relax.astype" and "float" in str(tensors[0].ty.dtype) and "float" not in dtype:
        return None  # the conversion of a number out of range differs between processors
    if operator(call) == "relax.dequantize" and dtype != "float32":
        return None
    value = np.ascontiguousarray(_RULES[str(operator(call))](call, *values))
    shape = [int(size) for size in call.ty.shape]
    return relax.const(value.astype(dtype, copy=False).reshape(shape), dtype)


def fold_simple_constants(mod: tvm.IRModule) -> tvm.IRModule:
    """Replace simple operators of constants by their results."""
    return rewrite_calls(mod, dict.fromkeys(_RULES, _fold))


def fold_constants(mod: tvm.IRModule) -> tvm.IRModule:
    """FoldConstant where an operator has constants alone, else only constants in place of their variables."""
    functions = [function for _, function in mod.functions_items() if isinstance(function, relax.Function)]
    if any(map(_folds, functions)):
        return relax.transform.FoldConstant()(mod)
    return relax.transform.CanonicalizeBindings()(mod)


def _folds(function: Any) -> bool:
    """Whether a call in `function` has arguments that are all known, or none."""
    calls: list[Any] = []
    bound: dict[Any, Any] = {}

    def note(expr: Any) -> None:
        if isinstance(expr, relax.Call):
            calls.append(expr)
        elif isinstance(expr, relax.SeqExpr):
            bound.update((binding.var, binding.value) for block in expr.blocks for binding in block.bindings)

    def known(expr: Any) -> bool:
        while isinstance(expr, relax.Var) and expr in bound:
            expr = bound[expr]
        if isinstance(expr, relax.Tuple):
            return all(map(known, expr.fields))
        if isinstance(expr, relax.TupleGetItem):
            return known(expr.tuple_value)
        return not isinstance(expr, (relax.Var, relax.Call, relax.If))

    post_order_visit(function, note)
    return any(all(map(known, call.args)) for call in calls)
