"""SinkReshapes: move reshapes after the operators that follow a matmul, so that fusion can merge them.

Frameworks flatten (batch, sequence, features) before a dense layer and restore the shape after it, and add
the residual to the restored tensor; fusion stops at the reshape in between. A reshape that keeps the last
axis moves after elementwise operators and after normalisations and softmax over that axis; where it meets the
reshape of the next dense layer, both are removed. Between a conversion to another type and a sum or another
reduction it moves back before the conversion: else the converted tensor, of four times the bytes, would be
stored. Guarantees: same results; no tensor is copied.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from kiln.graph.bindings import CallRewriter, constant, integers, operator, rewrite_calls

_UNARY = (
    "abs", "astype", "ceil", "erf", "exp", "floor", "log", "negative", "nn.gelu", "nn.gelu_tanh",
    "nn.leakyrelu", "nn.relu", "nn.relu6", "nn.silu", "round", "rsqrt", "sigmoid", "sign", "sqrt", "square",
    "tanh",
)  # fmt: skip
_BINARY = ("add", "divide", "maximum", "minimum", "multiply", "power", "subtract")
_REDUCTIONS = ("sum", "mean", "max", "min", "prod")
_ROWS = ("nn.layer_norm", "nn.rms_norm", "nn.softmax", "nn.log_softmax")


def same_shape(shape: Any, other: Any) -> bool:
    """Whether two shapes have the same sizes; dynamic sizes are the same if their expressions are."""
    sizes, others = list(shape), list(other)
    return len(sizes) == len(others) and all(
        tvm_ffi.structural_equal(a, b) for a, b in zip(sizes, others, strict=True)
    )


def _reshaped(rewriter: CallRewriter, expr: relax.Expr) -> Any:
    """The operand of `expr` if `expr` is a reshape that keeps the last axis; otherwise None."""
    inner = rewriter.definition(expr)
    if operator(inner) != "relax.reshape":
        return None
    data = inner.args[0]
    before, after = list(data.ty.shape), list(inner.ty.shape)
    if not before or not after or not tvm_ffi.structural_equal(before[-1], after[-1]):
        return None
    return data


def _from_matmul(rewriter: CallRewriter, expr: relax.Expr) -> bool:
    """Whether `expr` is computed from a matmul or convolution by elementwise operators."""
    while True:
        inner = rewriter.definition(expr)
        name = (operator(inner) or "").removeprefix("relax.")
        if name in ("matmul", "nn.conv2d"):
            return True
        if name not in _UNARY and name not in _BINARY:
            return False
        expr = inner.args[0] if name in _UNARY or constant(inner.args[0]) is None else inner.args[1]


def _again(call: relax.Call, operands: list[Any]) -> Any:
    return relax.Call(call.op, [*operands, *call.args[len(operands) :]], call.attrs)


def _then_reshape(rewriter: CallRewriter, call: relax.Call, operands: list[Any]) -> Any:
    """`call` on other operands, followed by a reshape to the shape of `call`."""
    return relax.op.reshape(rewriter.emit(_again(call, operands)), relax.ShapeExpr(list(call.ty.shape)))


def _unary(rewriter: CallRewriter, call: relax.Call) -> Any:
    data = _reshaped(rewriter, call.args[0])
    return None if data is None else _then_reshape(rewriter, call, [data])


def along_last(expr: relax.Expr) -> bool:
    """Whether `expr` is a constant with one element, or with one for each index of the last axis."""
    value = constant(expr)
    return value is not None and value.size == (1 if not value.ndim else value.shape[-1])


def _flat(expr: relax.Expr, rank: int) -> Any:
    """The constant `expr`, for which along_last is true, with one axis if it has more than `rank`."""
    value = constant(expr)
    assert value is not None
    return relax.const(value.reshape(value.shape[-1:]), str(value.dtype)) if value.ndim > rank else expr


def _is_one_where_they_differ(before: Any, after: Any, other: Any) -> bool:
    """Whether a tensor of shape `other` broadcasts to `after` and `before`, shapes of one rank, alike."""
    if len(before) != len(after) or len(other) != len(after):
        return False
    pairs = list(zip(before, after, other, strict=True))
    return all(
        same_shape([a], [b]) or same_shape([size], [tvm.tirx.IntImm("int64", 1)]) for a, b, size in pairs
    )


def _binary(rewriter: CallRewriter, call: relax.Call) -> Any:
    left, right = call.args
    inner = [_reshaped(rewriter, operand) for operand in (left, right)]
    for index in range(2):
        data, other = inner[index], call.args[1 - index]
        if data is None or not same_shape(call.args[index].ty.shape, call.ty.shape):
            continue
        if along_last(other):
            other = _flat(other, len(data.ty.shape))
        elif _is_one_where_they_differ(data.ty.shape, call.ty.shape, other.ty.shape):
            pass  # such as a mask for all heads
        elif inner[1 - index] is not None and same_shape(inner[1 - index].ty.shape, data.ty.shape):
            other = inner[1 - index]
        elif _from_matmul(rewriter, data) and same_shape(other.ty.shape, call.ty.shape):
            other = rewriter.emit(relax.op.reshape(other, relax.ShapeExpr(list(data.ty.shape))))
        else:
            continue
        return _then_reshape(rewriter, call, [data, other] if index == 0 else [other, data])
    return None


def _rows(rewriter: CallRewriter, call: Any) -> Any:
    rank = len(call.ty.shape)
    axes = integers(call.attrs.axes) if hasattr(call.attrs, "axes") else [int(call.attrs.axis)]
    data = _reshaped(rewriter, call.args[0])
    if data is None or [axis % rank for axis in axes] != [rank - 1]:
        return None
    if operator(call) in ("relax.nn.layer_norm", "relax.nn.rms_norm") or axes == [-1]:
        if axes != [-1]:
            return None
        return _then_reshape(rewriter, call, [data])
    make = relax.op.nn.softmax if operator(call) == "relax.nn.softmax" else relax.op.nn.log_softmax
    return relax.op.reshape(rewriter.emit(make(data, -1)), relax.ShapeExpr(list(call.ty.shape)))


def _reshape(rewriter: CallRewriter, call: relax.Call) -> Any:
    inner = rewriter.definition(call.args[0])
    data = inner.args[0] if operator(inner) == "relax.reshape" else call.args[0]
    if same_shape(data.ty.shape, call.ty.shape):
        return data
    return None if data.same_as(call.args[0]) else relax.op.reshape(data, call.args[1])


def _matmul(rewriter: CallRewriter, call: relax.Call) -> Any:
    """Move a reshape from before a dense layer to after it."""
    data = _reshaped(rewriter, call.args[0])
    weights = constant(call.args[1])
    if data is None or weights is None or weights.ndim != 2 or len(data.ty.shape) < 2:
        return None
    return _then_reshape(rewriter, call, [data])


def _conversion(rewriter: CallRewriter, call: Any) -> Any:
    """quantize or dequantize with one scale."""
    data = _reshaped(rewriter, call.args[0])
    values = [constant(argument) for argument in call.args[1:3]]
    if data is None or any(value is None or value.size != 1 for value in values):
        return None
    make = relax.op.quantize if operator(call) == "relax.quantize" else relax.op.dequantize
    converted = rewriter.emit(make(data, *call.args[1:3], 0, str(call.attrs.out_dtype)))
    return relax.op.reshape(converted, relax.ShapeExpr(list(call.ty.shape)))


def _reduction(rewriter: CallRewriter, call: relax.Call) -> Any:
    """Move a reshape from between a conversion and a reduction to before the conversion."""
    inner = rewriter.definition(call.args[0])
    if operator(inner) != "relax.reshape":
        return None
    cast = rewriter.definition(inner.args[0])
    if operator(cast) != "relax.astype":
        return None
    narrow = rewriter.emit(relax.op.reshape(cast.args[0], inner.args[1]))
    return _again(call, [rewriter.emit(relax.op.astype(narrow, cast.attrs.dtype))])


def sink_reshapes(mod: tvm.IRModule) -> tvm.IRModule:
    """Move reshapes after elementwise operators, norms, softmax and dense layers."""
    rules: dict[str, Any] = {f"relax.{name}": _unary for name in _UNARY}
    rules |= {f"relax.{name}": _binary for name in _BINARY}
    rules |= {f"relax.{name}": _rows for name in _ROWS}
    rules |= {f"relax.{name}": _reduction for name in _REDUCTIONS}
    rules |= {"relax.reshape": _reshape, "relax.matmul": _matmul}
    rules |= {"relax.quantize": _conversion, "relax.dequantize": _conversion}
    return relax.transform.DeadCodeElimination()(rewrite_calls(mod, rules))
