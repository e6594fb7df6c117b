"""Constants: simple operators of constants are computed by NumPy, the others by TVM.

relax.transform.FoldConstant compiles a function for each operator and shape, which takes a minute for the
hundreds of scales and biases of a quantised model, and it legalises every operator of the module, which takes
a millisecond for each and ends in an assertion for those that TVM has no rule for. Guarantees: results are
unchanged; operators without an entry in _RULES or _TRUTH_RULES are left to FoldConstant, which gets calls of
constants alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax

from kiln.graph.bindings import OTHERS, Array, CallRewriter, constant, integers, operator, rewrite_calls
from kiln.graph.divisions import division_by_zero


def _shaped(call: relax.Call, value: Array) -> Array:
    return value.reshape([int(size) for size in call.ty.shape])


def _turned(call: relax.Call, value: Array) -> Array:
    return np.transpose(value, None if call.attrs.axes is None else integers(call.attrs.axes))


def _dequantised(call: relax.Call, data: Array, scale: Array, zero: Array) -> Array:
    """(data - zero) * scale in float32."""
    axis = int(call.attrs.axis) % max(data.ndim, 1)
    sizes = [-1 if index == axis else 1 for index in range(data.ndim)]
    factors = [operand.reshape(sizes if operand.size > 1 else ()) for operand in (scale, zero)]
    centred = data.astype("int64") - factors[1].astype("int64")
    values: Array = centred.astype("float32") * factors[0].astype("float32")
    return values


def _scattered(call: relax.Call, data: Array, places: Array, updates: Array) -> Array:
    """`data` with `updates` at `places` along the axis; places out of range are left out."""
    axis = int(call.attrs.axis) % data.ndim
    inside = (places >= 0) & (places < data.shape[axis])
    grids: list[Array] = list(np.indices(places.shape))
    target = [grid[inside] for grid in grids]
    target[axis] = places[inside].astype("int64")
    result: Array = data.copy()
    combine = _COMBINE.get(str(call.attrs.reduction))
    if combine is None:
        result[tuple(target)] = updates[inside]
    else:
        combine.at(result, tuple(target), updates[inside])
    return result


def _rooted(_call: Any, value: Array) -> Array:
    """Square roots, which every processor rounds in the same way; NaN for negative numbers."""
    with np.errstate(invalid="ignore"):
        roots: Array = np.sqrt(value)
    return roots


def _limited(call: Any, value: Array) -> Array:
    """`value`, integers, within the limits of the clip `call`; these may be beyond the limits of the type."""
    ends = np.iinfo(value.dtype)
    least, most = (min(max(int(limit.value), ends.min), ends.max) for limit in call.args[1:])
    limited: Array = np.clip(value, least, most)
    return limited


def _pair(function: Callable[[Any, Any], Any]) -> Callable[..., Array]:
    def compute(_call: Any, left: Array, right: Array) -> Array:
        values: Array = function(left, right)
        return values

    return compute


def _taken(call: relax.Call, data: Array, places: Array) -> Array | None:
    """The parts of `data` at `places` along an axis; None where one is out of range: TVM has three modes."""
    axis = None if call.attrs.axis is None else int(call.attrs.axis)
    size = data.size if axis is None else data.shape[axis]
    if places.size and (places.min() < 0 or places.max() >= size):
        return None
    parts: Array = np.take(data, places, axis)
    return parts


def _chosen(_call: Any, condition: Array, left: Array, right: Array) -> Array:
    """`left` where the condition holds, and `right` elsewhere."""
    values: Array = np.where(condition, left, right)
    return values


_COMBINE = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}  # by reduction
_RULES: dict[str, Callable[..., Array | None]] = {
    "relax.add": _pair(np.add),
    "relax.astype": lambda call, value: value.astype(str(call.ty.dtype)),
    "relax.clip": _limited,
    "relax.dequantize": _dequantised,
    "relax.expand_dims": _shaped,
    "relax.multiply": _pair(np.multiply),
    "relax.permute_dims": _turned,
    "relax.reshape": lambda call, value, *_: _shaped(call, value),
    "relax.scatter_elements": _scattered,
    "relax.sqrt": _rooted,
    "relax.squeeze": _shaped,
    "relax.subtract": _pair(np.subtract),
    "relax.take": _taken,  # the rows of a loop over a constant: one for each turn
}
# By operators that take or return truth values. Exporters write negative indices as where(i < 0, i + n, i).
_TRUTH_RULES: dict[str, Callable[..., Array]] = {
    "relax.equal": _pair(np.equal),
    "relax.greater": _pair(np.greater),
    "relax.greater_equal": _pair(np.greater_equal),
    "relax.less": _pair(np.less),
    "relax.less_equal": _pair(np.less_equal),
    "relax.logical_and": _pair(np.logical_and),
    "relax.logical_not": lambda _, value: np.logical_not(value),
    "relax.logical_or": _pair(np.logical_or),
    "relax.not_equal": _pair(np.not_equal),
    "relax.where": _chosen,
}
_LEVELS = ("int8", "uint8", "int16", "uint16")
_TYPES = ("float32", *_LEVELS, "int32", "int64")


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
    if operator(call) in ("relax.dequantize", "relax.sqrt") and dtype != "float32":
        return None
    if operator(call) == "relax.clip" and "float" in dtype:
        return None
    result = _RULES[str(operator(call))](call, *values)
    return None if result is None else _constant(call, result)


def _fold_truth(rewriter: CallRewriter, call: Any) -> Any:
    """The constant that `call`, an operator of _TRUTH_RULES, computes, or None."""
    values = [constant(rewriter.definition(argument)) for argument in call.args]
    types = {str(argument.ty.dtype) for argument in call.args}
    if any(value is None for value in values) or not types <= {*_TYPES, "bool"}:
        return None
    return _constant(call, _TRUTH_RULES[str(operator(call))](call, *values))


def _constant(call: relax.Call, result: Array) -> Any:
    """`result` as a constant of the type and shape of `call`."""
    dtype = str(call.ty.dtype)
    value = np.ascontiguousarray(result)
    shape = [int(size) for size in call.ty.shape]
    return relax.const(value.astype(dtype, copy=False).reshape(shape), dtype)


def fold_simple_constants(mod: tvm.IRModule) -> tvm.IRModule:
    """Replace simple operators of constants by their results."""
    rules: dict[str, Callable[[CallRewriter, Any], Any]] = dict.fromkeys(_RULES, _fold)
    return rewrite_calls(mod, rules | dict.fromkeys(_TRUTH_RULES, _fold_truth))


def fold_levels(mod: tvm.IRModule) -> tvm.IRModule:
    """Compute constants of integers of 8 and 16 bits, such as weights that are clipped to fewer bits.

    Runs before products become ones of integers, and leaves to them what is dequantised.
    """

    def rule(rewriter: CallRewriter, call: Any) -> Any:
        return _fold(rewriter, call) if str(getattr(call.ty, "dtype", "")) in _LEVELS else None

    return rewrite_calls(mod, dict.fromkeys(_RULES, rule))


def fold_constants(mod: tvm.IRModule) -> tvm.IRModule:
    """FoldConstant for each operator that has constants alone, and constants in place of their variables."""
    return relax.transform.CanonicalizeBindings()(rewrite_calls(mod, {OTHERS: _folded}))


def _folded(rewriter: CallRewriter, call: relax.Call) -> Any:
    """The result of a call whose arguments are all known, or that has none; None for other calls."""
    if not _is_static(call.ty):
        return None
    arguments = [_known(rewriter, argument) for argument in call.args]
    if any(argument is None for argument in arguments) or _is_left_to_kiln(call):
        return None  # known arguments have sizes that are numbers
    known = relax.Call(call.op, arguments, call.attrs, call.ty_args)
    product = division_by_zero(known)
    return _evaluated(known if product is None else product)


def _known(rewriter: CallRewriter, expr: relax.Expr) -> Any:
    """`expr` with the constants that variables are bound to; None where it depends on a computed value."""
    expr = rewriter.definition(expr)
    if isinstance(expr, relax.Tuple):
        fields = [_known(rewriter, field) for field in expr.fields]
        return None if any(field is None for field in fields) else relax.Tuple(fields)
    is_computed = isinstance(expr, (relax.Var, relax.Call, relax.If, relax.TupleGetItem))
    return None if is_computed or not _is_static(expr.ty) else expr


def _is_static(kind: Any) -> bool:
    """Whether all sizes of a type are numbers."""
    if isinstance(kind, relax.TupleType):
        return all(map(_is_static, kind.fields))
    sizes = getattr(kind, "values" if isinstance(kind, relax.ShapeType) else "shape", None)
    return sizes is None or all(isinstance(size, tvm.tirx.IntImm) for size in sizes)


def _is_left_to_kiln(call: Any) -> bool:
    """Whether TVM's own rule, by which FoldConstant computes the call, is wrong; Kiln has a rule of its own.

    TVM 0.27 ends in an assertion for a grid_sample of another layout than NCHW. In a scatter_elements it
    takes indices to be as long as the data along the other axes: _RULES has the types that NumPy computes.
    """
    name = operator(call)
    if name == "relax.scatter_elements":
        return _other_axes(call, call.args[0]) != _other_axes(call, call.args[1])
    return name == "relax.image.grid_sample" and str(call.attrs.layout) != "NCHW"


def _other_axes(call: relax.Call, tensor: Any) -> list[int]:
    """The sizes of the axes of a tensor, but for the one that `call` scatters along."""
    sizes = [int(size) for size in tensor.ty.shape]
    del sizes[int(call.attrs.axis) % len(sizes)]
    return sizes


def _evaluated(call: Any) -> Any:
    """The constant, or tuple of constants, that a call of constants computes; None where TVM folds it not."""
    builder = relax.BlockBuilder()
    with builder.function("main", []):
        with builder.dataflow():
            result = builder.emit_output(call)
        builder.emit_func_output(result)
    body = relax.transform.FoldConstant()(builder.get())["main"].body
    bound = {binding.var: binding.value for block in body.blocks for binding in block.bindings}
    value = body.body
    while isinstance(value, relax.Var) and value in bound:
        value = bound[value]
    fields = value.fields if isinstance(value, relax.Tuple) else [value]
    return value if all(constant(field) is not None for field in fields) else None
