"""Quantised arithmetic without floats, for cores that have no instructions for them.

The graph's int8 and uint8 tensors are connected by float expressions that end in relax.quantize. Three kinds
of them become integer arithmetic:

- Sums. q = round((c_1 x_1 + c_2 x_2 + b) / s) + z of integer tensors x with constant c and b, one or one per
  channel, is (m_1 x_1 + m_2 x_2 + b') >> n in 64 bits, where m = round(2^n c / s) has at most 30 bits and b'
  contains half a unit of the result, for rounding (Jacob et al., 2018, section 2.2, with one shift for all
  channels). Limits (ReLU, ReLU6) are limits of q. The error is below 0.02 of a level.
- Tables. A chain of elementwise operators on one int8 or uint8 tensor is a table of 256 entries.
- Averages. The pooling of raw integers, rounded half away from zero, is (2 sum + n + (sum < 0 ? -1 : 0))
  divided by 2 n and rounded down (kernels/operators/pooling.py).
- Softmax. e = T[max - x] from a table of 256 entries in 22 bits, and (e 256 + sum / 2) / sum.

Exact ties are rounded up, not to even. Other expressions stay as they are, in floats.
Needs: scales and zero points bound as constants, and one zero point for each tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
from tvm import relax

from kiln.graph.bindings import (
    Array,
    CallRewriter,
    Rule,
    const,
    constant,
    integers,
    operator,
    rewrite_calls,
    shape_of,
)

_FACTOR_BITS = 30  # of the largest factor
_LEAST_FACTOR = 1 << 13  # a smaller one would be too coarse
_BIAS_LIMIT = 1 << 60
_TABLE_BITS = 22  # of softmax's exponentials
_BYTES = {"int8": (-128, 127), "uint8": (0, 255)}
# Elementwise operators of one tensor, evaluated for a table.
_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "relax.exp": np.exp, "relax.tanh": np.tanh, "relax.abs": np.abs, "relax.negative": np.negative,
    "relax.sqrt": np.sqrt, "relax.log": np.log, "relax.sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "relax.nn.relu": lambda x: np.maximum(x, 0), "relax.nn.silu": lambda x: x / (1 + np.exp(-x)),
    "relax.square": np.square, "relax.rsqrt": lambda x: 1 / np.sqrt(x), "relax.floor": np.floor,
    "relax.ceil": np.ceil,
}  # fmt: skip
_PAIRS: dict[str, Callable[[Array, Array], Array]] = {
    "relax.add": np.add, "relax.subtract": np.subtract, "relax.multiply": np.multiply,
    "relax.divide": np.divide, "relax.maximum": np.maximum, "relax.minimum": np.minimum,
}  # fmt: skip


@dataclass(frozen=True)
class _Sum:
    """terms[i][0] * terms[i][1] + bias, then limited to [low, high]; the tensors are integers."""

    terms: tuple[tuple[Any, Array], ...]
    bias: Array
    low: float = -math.inf
    high: float = math.inf

    @property
    def limited(self) -> bool:
        """Whether the sum has limits; no term may be added after them."""
        return math.isfinite(self.low) or math.isfinite(self.high)


def fixed_point(mod: tvm.IRModule) -> tvm.IRModule:
    """Replace float arithmetic between quantised tensors by integers (see the module's docstring)."""
    rules: dict[str, Rule] = {"relax.quantize": _quantize, "relax.astype": _average}
    return relax.transform.DeadCodeElimination()(rewrite_calls(mod, rules))


def _average(rewriter: CallRewriter, call: Any) -> Any:
    """The average pooling of raw int8 or uint8 values m, stored as trunc(m + 0.5 sign(m)): on integers."""
    dtype = str(call.ty.dtype)
    total = rewriter.definition(call.args[0])
    if dtype not in _BYTES or operator(total) != "relax.add":
        return None
    pooled, half = (rewriter.definition(argument) for argument in total.args)
    if operator(pooled) != "relax.nn.avg_pool2d" or operator(half) != "relax.multiply":
        return None
    sign, fixed = rewriter.definition(half.args[0]), constant(half.args[1])
    if operator(sign) != "relax.sign" or fixed is None or fixed.size != 1 or float(fixed.reshape(())) != 0.5:
        return None
    source = rewriter.definition(pooled.args[0])
    if not rewriter.definition(sign.args[0]).same_as(pooled) or operator(source) != "relax.astype":
        return None
    if str(source.args[0].ty.dtype) != dtype:
        return None
    attrs = pooled.attrs
    return relax.op.nn.avg_pool2d(
        source.args[0], integers(attrs.pool_size), integers(attrs.strides), integers(attrs.padding),
        integers(attrs.dilation), bool(attrs.ceil_mode), bool(attrs.count_include_pad), str(attrs.layout),
    )  # fmt: skip


def _quantize(rewriter: CallRewriter, call: Any) -> Any:
    scale, zero = constant(call.args[1]), constant(call.args[2])
    dtype = str(call.ty.dtype)
    if scale is None or zero is None or scale.size != 1 or zero.size != 1 or dtype not in _BYTES:
        return None
    step, level = float(scale.reshape(())), int(zero.reshape(()))
    for rule in (_softmax, _table, _sum):
        result = rule(rewriter, call.args[0], step, level, dtype)
        if result is not None:
            # Fusion stops at the reshape: the next operator's int64 would be stored instead of the bytes.
            return relax.op.reshape(rewriter.emit(result), list(call.ty.shape))
    return None


def dequantised(rewriter: CallRewriter, expr: Any) -> tuple[Any, float, int] | None:
    """(data, scale, zero point) of a dequantised int8 or uint8 tensor with one scale; else None."""
    call = rewriter.definition(expr)
    if operator(call) != "relax.dequantize" or str(call.args[0].ty.dtype) not in _BYTES:
        return None
    scale, zero = constant(call.args[1]), constant(call.args[2])
    if scale is None or zero is None or scale.size != 1 or zero.size != 1:
        return None
    return call.args[0], float(scale.reshape(())), int(zero.reshape(()))


def _levels(values: Array, step: float, level: int, dtype: str) -> Array:
    """`values` quantised to `dtype`, with ties rounded up."""
    low, high = _BYTES[dtype]
    nearest: Array = np.floor(np.clip(values / step, -1e6, 1e6) + 0.5) + level
    return np.clip(nearest, low, high).astype(dtype)


def _lookup(rewriter: CallRewriter, table: Array, data: Any, first: int) -> Any:
    """table[data - first] for every element of `data`."""
    index = rewriter.emit(relax.op.astype(data, "int32"))
    if first:
        index = rewriter.emit(relax.op.add(index, const(-first, "int32")))
    return relax.op.take(const(table, str(table.dtype)), index, axis=0, mode="clip")


def _table(rewriter: CallRewriter, expr: Any, step: float, level: int, dtype: str) -> Any:
    leaf: list[tuple[Any, float, int]] = []

    def value(node: Any) -> Array | None:
        """The value of `node` for each of 256 levels of the leaf; None for other operators."""
        found = dequantised(rewriter, node)
        if found is not None:
            if leaf and not leaf[0][0].same_as(found[0]):
                return None
            leaf[:] = [found]
            low, high = _BYTES[str(found[0].ty.dtype)]
            return (np.arange(low, high + 1) - found[2]) * found[1]
        call = rewriter.definition(node)
        fixed = constant(call)
        if fixed is not None:
            return fixed.astype("float64").reshape(()) if fixed.size == 1 else None
        name = operator(call) or ""
        if name in _FUNCTIONS:
            inner = value(call.args[0])
            return None if inner is None else _FUNCTIONS[name](inner)
        if name in _PAIRS:
            left, right = value(call.args[0]), value(call.args[1])
            return None if left is None or right is None else _PAIRS[name](left, right)
        return None

    with np.errstate(all="ignore"):
        values = value(expr)
    if values is None or values.ndim == 0 or not leaf or np.isnan(values).any():
        return None
    data = leaf[0][0]
    if shape_of(data) != shape_of(expr):
        return None
    return _lookup(rewriter, _levels(values, step, level, dtype), data, _BYTES[str(data.ty.dtype)][0])


def _softmax(rewriter: CallRewriter, expr: Any, step: float, level: int, dtype: str) -> Any:
    call = rewriter.definition(expr)
    if operator(call) != "relax.nn.softmax":
        return None
    found, beta = dequantised(rewriter, call.args[0]), 1.0
    scaled = rewriter.definition(call.args[0])
    if found is None and operator(scaled) == "relax.multiply":
        fixed = constant(scaled.args[1])
        if fixed is not None and fixed.size == 1:
            found, beta = dequantised(rewriter, scaled.args[0]), float(fixed.reshape(()))
    inverse = round(1 / step)
    length = shape_of(call)[int(call.attrs.axis)]
    if found is None or beta <= 0 or abs(inverse * step - 1) > 1e-6 or not isinstance(length, int):
        return None
    bits = min(_TABLE_BITS, 30 - max(inverse - 1, length - 1, 1).bit_length())
    if bits < 16:
        return None
    data, scale, _ = found
    table = np.round(np.exp(-np.arange(256) * scale * beta) * 2.0**bits).astype("int32")
    axis, op, emit = int(call.attrs.axis), relax.op, rewriter.emit
    wide = emit(op.astype(data, "int32"))
    distance = emit(op.subtract(emit(op.max(wide, axis, keepdims=True)), wide))
    share = emit(op.take(const(table, "int32"), distance, axis=0, mode="clip"))
    total = emit(op.sum(share, axis, keepdims=True))
    half = emit(op.right_shift(total, const(1, "int32")))
    scaled_share = emit(op.add(emit(op.multiply(share, const(inverse, "int32"))), half))
    ratio = emit(op.floor_divide(scaled_share, total))
    return _stored(rewriter, ratio, level, *_BYTES[dtype], dtype)


def _stored(rewriter: CallRewriter, total: Any, level: int, low: int, high: int, dtype: str) -> Any:
    """total + level, limited to [low, high], as `dtype`."""
    kind, op, emit = str(total.ty.dtype), relax.op, rewriter.emit
    moved = emit(op.add(total, const(level, kind))) if level else total
    limited = emit(op.minimum(emit(op.maximum(moved, const(low, kind))), const(high, kind)))
    return op.astype(limited, dtype)


def _sum(rewriter: CallRewriter, expr: Any, step: float, level: int, dtype: str) -> Any:
    found = _read_sum(rewriter, expr)
    if found is None or not 1 <= len(found.terms) <= 2 or not np.isfinite(found.bias).all():
        return None
    factors = [factor / step for _, factor in found.terms]
    largest = max(float(np.abs(factor).max(initial=0.0)) for factor in factors)
    if not 0 < largest < 2.0**20 or any(shape_of(data) != shape_of(expr) for data, _ in found.terms):
        return None
    shift = min(_FACTOR_BITS - math.frexp(largest)[1], 56)
    whole = [np.round(factor * 2.0**shift) for factor in factors]
    if any(np.abs(factor[factor != 0]).min(initial=2.0**30) < _LEAST_FACTOR for factor in whole):
        return None
    bias = np.round(found.bias / step * 2.0**shift) + 2.0 ** (shift - 1)
    if np.abs(bias).max(initial=0.0) >= _BIAS_LIMIT:
        return None
    op, emit = relax.op, rewriter.emit
    total: Any = None
    for (data, _), factor in zip(found.terms, whole, strict=True):
        # The factor is stored in 32 bits: one multiplication of 32 by 32 bits, where the core has it.
        multiplier = emit(op.astype(const(factor, "int32"), "int64"))
        product = emit(op.multiply(emit(op.astype(data, "int64")), multiplier))
        total = product if total is None else emit(op.add(total, product))
    total = emit(op.add(total, const(bias, "int64")))
    narrow = emit(op.right_shift(total, const(shift, "int64")))
    least, most = _BYTES[dtype]
    low = least if found.low == -math.inf else int(_levels(np.array(found.low), step, level, dtype))
    high = most if found.high == math.inf else int(_levels(np.array(found.high), step, level, dtype))
    # Limited in 64 bits, since a sum far beyond the limits would lose its top bits.
    return _stored(rewriter, narrow, level, low, high, dtype)


def _read_sum(rewriter: CallRewriter, expr: Any) -> _Sum | None:
    """The sum that `expr` computes; None for an expression that is not a sum."""
    leaf = dequantised(rewriter, expr)
    if leaf is not None:
        data, scale, zero = leaf
        return _Sum(((data, np.array(scale)),), np.array(-scale * zero))
    call = rewriter.definition(expr)
    name, fixed = operator(call), constant(call)
    if fixed is not None:
        return _Sum((), fixed.astype("float64"))
    if name == "relax.mean":
        return _mean(rewriter, call)
    if name == "relax.astype" and str(call.args[0].ty.dtype) == "int32":
        data, bias = call.args[0], np.array(0.0)
        inner = rewriter.definition(data)
        if operator(inner) == "relax.add":  # the bias of a matmul: added in 64 bits, with the other constants
            fixed = constant(inner.args[1])
            if fixed is not None and shape_of(inner.args[0]) == shape_of(inner):
                data, bias = inner.args[0], fixed.astype("float64")
        return _Sum(((data, np.array(1.0)),), bias)
    if name == "relax.nn.relu":
        inner = _read_sum(rewriter, call.args[0])
        return None if inner is None else replace(inner, low=max(inner.low, 0.0))
    if name not in ("relax.add", "relax.subtract", "relax.multiply", "relax.maximum", "relax.minimum"):
        return None
    left, right = (_read_sum(rewriter, argument) for argument in call.args)
    if left is None or right is None:
        return None
    return (
        _limited(name, left, right)
        if name in ("relax.maximum", "relax.minimum")
        else _joined(name, left, right)
    )


def _mean(rewriter: CallRewriter, call: Any) -> _Sum | None:
    """The mean of a dequantised tensor: the sum of its levels times scale / count."""
    leaf, before, after = dequantised(rewriter, call.args[0]), shape_of(call.args[0]), shape_of(call)
    sizes = [*(before or ()), *(after or ())]
    if leaf is None or not all(isinstance(size, int) and size > 0 for size in sizes):
        return None
    count = math.prod(before) // math.prod(after)
    data, scale, zero = leaf
    if count > 1 << 22:  # the sum must fit 32 bits
        return None
    axes = None if call.attrs.axis is None else integers(call.attrs.axis)
    wide = rewriter.emit(relax.op.astype(data, "int32"))
    total = rewriter.emit(relax.op.sum(wide, axes, bool(call.attrs.keepdims)))
    return _Sum(((total, np.array(scale / count)),), np.array(-scale * zero))


def _limited(name: str, left: _Sum, right: _Sum) -> _Sum | None:
    if not left.terms:
        left, right = right, left
    if right.terms or right.bias.size != 1:
        return None
    limit = float(right.bias.reshape(()))
    if name == "relax.maximum":
        return replace(left, low=max(left.low, limit), high=max(left.high, limit))
    return replace(left, low=min(left.low, limit), high=min(left.high, limit))


def _joined(name: str, left: _Sum, right: _Sum) -> _Sum | None:
    if left.limited or right.limited:
        return None
    if name != "relax.multiply":
        sign = 1.0 if name == "relax.add" else -1.0
        others = tuple((data, sign * factor) for data, factor in right.terms)
        return _Sum((*left.terms, *others), left.bias + sign * right.bias)
    if not left.terms:
        left, right = right, left
    if right.terms:
        return None
    return _Sum(tuple((data, factor * right.bias) for data, factor in left.terms), left.bias * right.bias)
