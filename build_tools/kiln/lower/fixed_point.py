"""Quantised arithmetic without floats, for cores that have no instructions for them.

The graph's quantised tensors are connected by float expressions that end in relax.quantize. Five kinds of
them become integer arithmetic:

- Sums. q = round((c_1 x_1 + c_2 x_2 + b) / s) + z of integer tensors x with constant c and b, one or one per
  channel, is (m_1 x_1 + m_2 x_2 + b') >> n in 64 bits, where m = round(2^n c / s) has at most 30 bits and b'
  contains half a unit of the result, for rounding (Jacob et al., 2018, section 2.2, with one shift for all
  channels). Sums of int8 and uint8 tensors and of their products are computed in 32 bits with shorter
  factors; a sum that is an operand of a product, such as a difference that is squared, has 15 bits.
  Limits (ReLU, ReLU6) are limits of q. The error is below 0.02 of a level.
- Tables. A chain of elementwise operators on one int8 or uint8 tensor is a table of 256 entries.
- Averages. The pooling of raw integers, rounded half away from zero, is (2 sum + n + (sum < 0 ? -1 : 0))
  divided by 2 n and rounded down (kernels/operators/pooling.py).
- Softmax. e = T[max - x] from a table of 256 entries in 22 bits, and (e 256 + sum / 2) / sum.
- Resized images: look-ups and weighted sums (lower/integer_resizes.py).

Exact ties are rounded up, not to even. Other expressions stay as they are, in floats.
Needs: scales and zero points bound as constants, and one zero point for each tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import tvm
from tvm import relax

from kiln.extents import shape_of
from kiln.graph.bindings import Array, CallRewriter, Rule, const, constant, integers, operator, rewrite_calls
from kiln.graph.quantised_moves import quantised_moves
from kiln.kernels.operators.pooling import MOST_POOLED
from kiln.lower.integer_resizes import bilinear, nearest
from kiln.lower.linear_sums import (
    BYTES,
    LEVELS,
    LinearSum,
    dequantised,
    fits_32_bits,
    read_sum,
    scaled,
    shift_in_32_bits,
)
from kiln.lower.tables import looked_up

_FACTOR_BITS = 30  # of the largest factor
_LEAST_FACTOR = 1 << 13  # a smaller one would be too coarse
_BIAS_LIMIT = 1 << 60
_SATURATED = 1 << 17  # a level, less its zero point, that is beyond the range of every type
_TABLE_BITS = 22  # of softmax's exponentials
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
    "relax.power": np.power, "relax.less": np.less, "relax.less_equal": np.less_equal,
    "relax.greater": np.greater, "relax.greater_equal": np.greater_equal,
}  # fmt: skip


def fixed_point(mod: tvm.IRModule) -> tvm.IRModule:
    """Replace float arithmetic between quantised tensors by integers (see the module's docstring)."""
    rules: dict[str, Rule] = {
        "relax.quantize": _quantize,
        "relax.astype": _average,
        "relax.image.resize2d": nearest,
    }
    # Later passes of simplify move reshapes to after a dequantize, where no rule would see the levels.
    mod = quantised_moves(mod)
    return relax.transform.DeadCodeElimination()(rewrite_calls(mod, rules))


def _average(rewriter: CallRewriter, call: relax.Call) -> Any:
    """The average pooling of raw levels m, stored as trunc(m + 0.5 sign(m)): on integers."""
    dtype = str(call.ty.dtype)
    total = rewriter.definition(call.args[0])
    if dtype not in LEVELS or operator(total) != "relax.add":
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
    attrs = pooled.attrs
    if str(source.args[0].ty.dtype) != dtype or math.prod(integers(attrs.pool_size)) > MOST_POOLED:
        return None
    return relax.op.nn.avg_pool2d(
        source.args[0], integers(attrs.pool_size), integers(attrs.strides), integers(attrs.padding),
        integers(attrs.dilation), bool(attrs.ceil_mode), bool(attrs.count_include_pad), str(attrs.layout),
    )  # fmt: skip


def _quantize(rewriter: CallRewriter, call: relax.Call) -> Any:
    scale, zero = constant(call.args[1]), constant(call.args[2])
    dtype = str(call.ty.dtype)
    if scale is None or zero is None or scale.size != 1 or zero.size != 1 or dtype not in LEVELS:
        return None
    step, level = float(scale.reshape(())), int(zero.reshape(()))
    for rule in (_softmax, _table, _sum, bilinear):
        result = rule(rewriter, call.args[0], step, level, dtype)
        if result is not None:
            # Fusion stops at the reshape: the next operator's int64 would be stored instead of the bytes.
            return relax.op.reshape(rewriter.emit(result), list(call.ty.shape))
    return None


def _levels(values: Array, step: float, level: int, dtype: str) -> Array:
    """`values` quantised to `dtype`, with ties rounded up."""
    low, high = LEVELS[dtype]
    nearest: Array = np.floor(np.clip(values / step, -1e6, 1e6) + 0.5) + level
    return np.clip(nearest, low, high).astype(dtype)


def _table(rewriter: CallRewriter, expr: relax.Expr, step: float, level: int, dtype: str) -> Any:
    leaf: list[tuple[Any, float, int]] = []

    def value(node: Any) -> Array | None:
        """The value of `node` for each of 256 levels of the leaf; None for other operators."""
        quantised = dequantised(rewriter, node)
        if quantised is not None:
            if leaf and not leaf[0][0].same_as(quantised[0]):
                return None
            leaf[:] = [quantised]
            low, high = BYTES[str(quantised[0].ty.dtype)]
            return (np.arange(low, high + 1) - quantised[2]) * quantised[1]
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
        if name == "relax.nn.leakyrelu":
            inner = value(call.args[0])
            return None if inner is None else np.where(inner < 0, inner * float(call.attrs.alpha), inner)
        if name == "relax.where":
            chosen, yes, no = (value(argument) for argument in call.args)
            return None if chosen is None or yes is None or no is None else np.where(chosen, yes, no)
        return None

    with np.errstate(all="ignore"):
        values = value(expr)
    if values is None or values.ndim == 0 or not leaf:
        return None
    values = np.where(np.isnan(values), -np.inf, values)  # as LiteRT's table of the logarithm
    data = leaf[0][0]
    if shape_of(data) != shape_of(expr):
        return None
    first = BYTES[str(data.ty.dtype)][0]
    by_byte = np.roll(_levels(values, step, level, dtype), first)
    return looked_up(rewriter, data, by_byte, expr.ty.shape)


def _softmax(rewriter: CallRewriter, expr: relax.Expr, step: float, level: int, dtype: str) -> Any:
    call = rewriter.definition(expr)
    if operator(call) != "relax.nn.softmax":
        return None
    quantised, beta = dequantised(rewriter, call.args[0]), 1.0
    scaled = rewriter.definition(call.args[0])
    if quantised is None and operator(scaled) == "relax.multiply":
        fixed = constant(scaled.args[1])
        if fixed is not None and fixed.size == 1:
            quantised, beta = dequantised(rewriter, scaled.args[0]), float(fixed.reshape(()))
    inverse = round(1 / step)
    length = shape_of(call)[int(call.attrs.axis)]
    if quantised is None or beta <= 0 or abs(inverse * step - 1) > 1e-6 or not isinstance(length, int):
        return None
    bits = min(_TABLE_BITS, 30 - max(inverse - 1, length - 1, 1).bit_length())
    if bits < 16:
        return None
    data, scale, _ = quantised
    table = np.round(np.exp(-np.arange(256) * scale * beta) * 2.0**bits).astype("int32")
    axis, op, emit = int(call.attrs.axis), relax.op, rewriter.emit
    wide = emit(op.astype(data, "int32"))
    distance = emit(op.subtract(emit(op.max(wide, axis, keepdims=True)), wide))
    share = emit(op.take(const(table, "int32"), distance, axis=0, mode="clip"))
    total = emit(op.sum(share, axis, keepdims=True))
    half = emit(op.right_shift(total, const(1, "int32")))
    scaled_share = emit(op.add(emit(op.multiply(share, const(inverse, "int32"))), half))
    ratio = emit(op.floor_divide(scaled_share, total))
    return _stored(rewriter, ratio, level, *LEVELS[dtype], dtype)


def _stored(rewriter: CallRewriter, total: Any, level: int, low: int, high: int, dtype: str) -> Any:
    """total + level, limited to [low, high], as `dtype`."""
    kind, op, emit = str(total.ty.dtype), relax.op, rewriter.emit
    moved = emit(op.add(total, const(level, kind))) if level else total
    limited = emit(op.minimum(emit(op.maximum(moved, const(low, kind))), const(high, kind)))
    return op.astype(limited, dtype)


def _sum(rewriter: CallRewriter, expr: relax.Expr, step: float, level: int, dtype: str) -> Any:
    linear = read_sum(rewriter, expr)
    if linear is None or not 1 <= len(linear.terms) <= 2 or not np.isfinite(linear.bias).all():
        return None
    if not _covers(linear, expr):
        return None
    most_shift = 56
    if any(str(term.data.ty.dtype) == "int64" for term in linear.terms):
        if len(linear.terms) > 1:
            return None
        linear, most_shift = _clipped(rewriter, linear, step)
    kind, shift = "int32", shift_in_32_bits(linear, step)
    if shift is None:
        kind, shift = "int64", _shift_in_64_bits(linear, step, most_shift)
    if shift is None:
        return None
    fits = fits_32_bits if kind == "int32" else _fits_64_bits
    if fits(linear, step, shift, level):  # the bias contains the zero point: no addition of its own
        narrow, level_left = scaled(rewriter, linear, step, shift, kind, level), 0
    else:
        narrow, level_left = scaled(rewriter, linear, step, shift, kind), level
    least, most = LEVELS[dtype]
    low = least if linear.low == -math.inf else int(_levels(np.array(linear.low), step, level, dtype))
    high = most if linear.high == math.inf else int(_levels(np.array(linear.high), step, level, dtype))
    # Limited before it is narrowed, since a sum far beyond the limits would lose its top bits.
    return _stored(rewriter, narrow, level_left, low, high, dtype)


def _covers(linear_sum: LinearSum, expr: relax.Expr) -> bool:
    """Whether the sum has the shape of `expr`.

    Each of its terms has it, or, with static shapes, its terms and constants broadcast.
    """
    shapes: list[Any] = [shape_of(term.data) for term in linear_sum.terms]
    if all(shape == shape_of(expr) for shape in shapes):
        return True
    shapes += [array.shape for array in (linear_sum.bias, *(term.factor for term in linear_sum.terms))]
    if not all(isinstance(size, int) for shape in (*shapes, shape_of(expr)) for size in shape):
        return False
    return np.broadcast_shapes(*shapes) == tuple(shape_of(expr))


def _clipped(rewriter: CallRewriter, linear_sum: LinearSum, step: float) -> tuple[LinearSum, int]:
    """A sum of one int64 term, limited where every type is saturated, and its greatest shift in 64 bits."""
    (term,), op = linear_sum.terms, relax.op
    reach = _SATURATED + float(np.abs(linear_sum.bias).max(initial=0.0)) / step
    factor = np.maximum(np.abs(term.factor) / step, reach * 2.0**-62)
    limit = np.ceil(reach / factor).astype("int64")
    data = rewriter.emit(op.minimum(term.data, const(limit, "int64")))
    data = rewriter.emit(op.maximum(data, const(-limit, "int64")))
    return replace(linear_sum, terms=(replace(term, data=data),)), 60 - math.frexp(reach)[1]


def _shift_in_64_bits(linear_sum: LinearSum, step: float, most: int) -> int | None:
    """The shift with which factors have 30 bits; None where a factor is too small, or the bias too large.

    most: greatest shift.
    """
    factors = [term.factor / step for term in linear_sum.terms]
    largest = max(float(np.abs(factor).max(initial=0.0)) for factor in factors)
    if not 0 < largest < 2.0**20:
        return None
    shift = min(_FACTOR_BITS - math.frexp(largest)[1], most)
    multipliers = [np.round(factor * 2.0**shift) for factor in factors]
    if any(np.abs(factor[factor != 0]).min(initial=2.0**30) < _LEAST_FACTOR for factor in multipliers):
        return None
    return shift if _fits_64_bits(linear_sum, step, shift, 0) else None


def _fits_64_bits(linear_sum: LinearSum, step: float, shift: int, level: int) -> bool:
    """Whether the bias with half a unit and `level`, in multiples of 2^-shift, is within the limit."""
    bias = np.abs(np.round(linear_sum.bias / step * 2.0**shift)).max(initial=0.0)
    return bool(bias + (abs(level) + 0.5) * 2.0**shift < _BIAS_LIMIT)
