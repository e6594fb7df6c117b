"""Norms: recognise layer norm and RMS norm that an exporter has decomposed into means, powers and divisions.

    d = x - mean(x);  y = d / sqrt(mean(d * d) + epsilon) * gamma + beta
    y = x / sqrt(mean(x * x) + epsilon) * gamma

over the last axis. A square may be written as a power or a multiplication, a root as a power, and a division
by the root as a multiplication by its inverse. Guarantees: same results up to rounding. An intermediate
result of the pattern that has other readers is still computed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

from kiln.graph.bindings import CallRewriter, Rule, const, constant, integers, number, operator, rewrite_calls


def _pair(call: Any, name: str) -> list[tuple[Any, Any]]:
    """The operands of the commutative operator `name` in both orders; empty if `call` is another operator."""
    if operator(call) != name:
        return []
    left, right = call.args
    return [(left, right), (right, left)]


def _square_of(rewriter: CallRewriter, expr: relax.Expr) -> Any:
    """x if `expr` is x * x, x ** 2 or square(x); otherwise None."""
    call = rewriter.definition(expr)
    name = operator(call)
    if name == "relax.square":
        return call.args[0]
    if name == "relax.multiply" and call.args[0].same_as(call.args[1]):
        return call.args[0]
    if name == "relax.power" and number(call.args[1]) == 2.0:
        return call.args[0]
    return None


def _mean_of(rewriter: CallRewriter, expr: relax.Expr) -> Any:
    """x if `expr` is the mean of x over its last axis with keepdims; otherwise None."""
    call = rewriter.definition(expr)
    if operator(call) != "relax.mean" or not call.attrs.keepdims or call.attrs.axis is None:
        return None
    rank = len(call.args[0].ty.shape)
    return call.args[0] if [axis % rank for axis in integers(call.attrs.axis)] == [rank - 1] else None


def _root_of(rewriter: CallRewriter, expr: relax.Expr) -> tuple[Any, float] | None:
    """(x, epsilon) if `expr` is sqrt(mean(x * x) + epsilon); otherwise None."""
    call = rewriter.definition(expr)
    root = operator(call) == "relax.sqrt"
    root = root or (operator(call) == "relax.power" and number(call.args[1]) == 0.5)
    if not root:
        return None
    for mean, added in _pair(rewriter.definition(call.args[0]), "relax.add"):
        epsilon = number(added)
        squares = _mean_of(rewriter, mean)
        data = None if squares is None else _square_of(rewriter, squares)
        if epsilon is not None and data is not None:
            return data, epsilon
    return None


def _inverse_root_of(rewriter: CallRewriter, expr: relax.Expr) -> tuple[Any, float] | None:
    """(x, epsilon) if `expr` is 1 / sqrt(mean(x * x) + epsilon); otherwise None."""
    call = rewriter.definition(expr)
    name = operator(call)
    if name == "relax.divide" and number(call.args[0]) == 1.0:
        return _root_of(rewriter, call.args[1])
    if name == "relax.rsqrt":
        return _root_of(rewriter, relax.op.sqrt(call.args[0]))
    if name == "relax.power" and number(call.args[1]) == -0.5:
        return _root_of(rewriter, relax.op.sqrt(call.args[0]))
    return None


def _normalised(rewriter: CallRewriter, data: Any, squares: tuple[Any, float] | None) -> Any:
    """`data` divided by its root mean square, as a norm operator.

    `squares`: (x, epsilon) of the root. None unless x is `data`, a float32 tensor with a static last axis.
    """
    size = data.ty.shape[-1] if len(data.ty.shape) else None
    if squares is None or not squares[0].same_as(data) or str(data.ty.dtype) != "float32":
        return None
    if not isinstance(size, tvm.tirx.IntImm):
        return None
    ones, zeros = (const(np.full(int(size), value), "float32") for value in (1.0, 0.0))
    centred = rewriter.definition(data)
    if operator(centred) == "relax.subtract":
        mean = _mean_of(rewriter, centred.args[1])
        if mean is not None and mean.same_as(centred.args[0]):
            return relax.op.nn.layer_norm(mean, ones, zeros, [-1], squares[1])
    if len(data.ty.shape) > 1:
        return relax.op.nn.rms_norm(data, ones, [-1], squares[1])
    # TVM 0.27 cannot lower an RMS norm over all axes: "Tensor dimension mismatch in read".
    return relax.op.squeeze(relax.op.nn.rms_norm(relax.op.expand_dims(data, 0), ones, [-1], squares[1]), [0])


def _divide(rewriter: CallRewriter, call: relax.Call) -> Any:
    return _normalised(rewriter, call.args[0], _root_of(rewriter, call.args[1]))


def _multiply(rewriter: CallRewriter, call: Any) -> Any:
    for data, factor in _pair(call, "relax.multiply"):
        result = _normalised(rewriter, data, _inverse_root_of(rewriter, factor))
        if result is not None:
            return result
        scale = _along_last(factor, call)
        norm = rewriter.definition(data)
        if scale is not None and operator(norm) == "relax.nn.layer_norm" and _last_axis(norm):
            x, gamma, beta = norm.args[:3]
            values = [constant(gamma), constant(beta)]
            if values[0] is None or values[1] is None:
                continue
            scaled = [const(value * scale, "float32") for value in values if value is not None]
            return relax.op.nn.layer_norm(x, *scaled, [-1], float(norm.attrs.epsilon))
        if scale is not None and operator(norm) == "relax.nn.rms_norm" and _last_axis(norm):
            gamma_value = constant(norm.args[1])
            if gamma_value is not None:
                scaled_gamma = const(gamma_value * scale, "float32")
                return relax.op.nn.rms_norm(norm.args[0], scaled_gamma, [-1], float(norm.attrs.epsilon))
    return None


def _add(rewriter: CallRewriter, call: Any) -> Any:
    for data, added in _pair(call, "relax.add"):
        shift, norm = _along_last(added, call), rewriter.definition(data)
        if shift is not None and operator(norm) == "relax.nn.layer_norm" and _last_axis(norm):
            beta = constant(norm.args[2])
            if beta is not None:
                shifted = const(beta + shift, "float32")
                arguments = [norm.args[0], norm.args[1], shifted, [-1], float(norm.attrs.epsilon)]
                return relax.op.nn.layer_norm(*arguments)
    return None


def _last_axis(norm: Any) -> bool:
    rank = len(norm.ty.shape)
    return [axis % rank for axis in integers(norm.attrs.axes)] == [rank - 1]


def _along_last(expr: relax.Expr, call: relax.Call) -> Any:
    """The value (1-D) of a constant with one element for each index of the last axis of `call`, or None."""
    value = constant(expr)
    size = call.ty.shape[-1] if len(call.ty.shape) else None
    if value is None or not value.ndim or not isinstance(size, tvm.tirx.IntImm):
        return None
    return value.reshape(-1) if value.shape[-1] == value.size == int(size) else None


def norms(mod: tvm.IRModule) -> tvm.IRModule:
    """Replace decomposed layer norms and RMS norms by the norm operators."""
    rules: dict[str, Rule] = {"relax.divide": _divide, "relax.multiply": _multiply, "relax.add": _add}
    return relax.transform.DeadCodeElimination()(rewrite_calls(mod, rules))
