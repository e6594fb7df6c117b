"""Float sums of quantised tensors, read from a graph: the operands of lower/fixed_point.py.

A sum is c_1 x_1 + c_2 x_2 + b, limited to a range, of integer tensors x: levels of quantised tensors,
accumulators of matmuls, sums of levels over axes, and products of two tensors' levels.
"""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import relax

from kiln.extents import shape_of
from kiln.graph.bindings import Array, CallRewriter, const, constant, integers, operator

_ERROR = 0.01  # of a level, most that sums in 32 bits may add
_MINUS = np.array(-1.0)
_HALF = 15  # bits of a sum that is an operand of a product
BYTES = {"int8": (-128, 127), "uint8": (0, 255)}
LEVELS = {**BYTES, "int16": (-(1 << 15), (1 << 15) - 1)}  # of the types of quantised tensors


@dataclass(frozen=True)
class Term:
    """data * factor. `data`: integers; `factor`: one, or one per channel; `bound`: of |data|, if known."""

    data: Any
    factor: Array
    bound: int | None = None


@dataclass(frozen=True)
class LinearSum:
    """The terms and `bias` added up, then limited to [low, high]."""

    terms: tuple[Term, ...]
    bias: Array
    low: float = -math.inf
    high: float = math.inf

    @property
    def limited(self) -> bool:
        """Whether the sum has limits; no term may be added after them."""
        return math.isfinite(self.low) or math.isfinite(self.high)


def dequantised(
    rewriter: CallRewriter, expr: relax.Expr, types: Container[str] = BYTES
) -> tuple[Any, float, int] | None:
    """(data, scale, zero point) of a dequantised tensor with one scale, of one of `types`; else None."""
    call = rewriter.definition(expr)
    if operator(call) != "relax.dequantize" or str(call.args[0].ty.dtype) not in types:
        return None
    scale, zero = constant(call.args[1]), constant(call.args[2])
    if scale is None or zero is None or scale.size != 1 or zero.size != 1:
        return None
    return call.args[0], float(scale.reshape(())), int(zero.reshape(()))


def _levels_of(data: Any, scale: float) -> Term:
    """The levels of a quantised tensor."""
    least, most = LEVELS[str(data.ty.dtype)]
    return Term(data, np.array(scale), max(-least, most))


def read_sum(rewriter: CallRewriter, expr: relax.Expr) -> LinearSum | None:
    """The sum that `expr` computes; None for an expression that is not a sum."""
    leaf = dequantised(rewriter, expr, LEVELS)
    if leaf is not None:
        data, scale, zero = leaf
        return LinearSum((_levels_of(data, scale),), np.array(-scale * zero))
    call = rewriter.definition(expr)
    name, fixed = operator(call), constant(call)
    if fixed is not None:
        return LinearSum((), fixed.astype("float64"))
    if name in ("relax.mean", "relax.sum"):
        return _mean(rewriter, call)
    if name == "relax.matmul":
        return _matmul(rewriter, call)
    if name == "relax.astype" and str(call.args[0].ty.dtype) in ("int32", "int64"):
        data, bias = call.args[0], np.array(0.0)
        inner = rewriter.definition(data)
        if operator(inner) == "relax.add":  # the bias of a matmul: added in 64 bits, with the other constants
            fixed = constant(inner.args[1])
            if fixed is not None and shape_of(inner.args[0]) == shape_of(inner):
                data, bias = inner.args[0], fixed.astype("float64")
        return LinearSum((Term(data, np.array(1.0)),), bias)
    if name == "relax.negative":
        inner = read_sum(rewriter, call.args[0])
        return None if inner is None else _joined(rewriter, "relax.multiply", inner, LinearSum((), _MINUS))
    if name == "relax.divide":
        return _quotient(rewriter, call)
    if name == "relax.nn.relu":
        inner = read_sum(rewriter, call.args[0])
        return None if inner is None else replace(inner, low=max(inner.low, 0.0))
    if name not in ("relax.add", "relax.subtract", "relax.multiply", "relax.maximum", "relax.minimum"):
        return None
    left, right = (read_sum(rewriter, argument) for argument in call.args)
    if left is None or right is None:
        return None
    return (
        _limited(name, left, right)
        if name in ("relax.maximum", "relax.minimum")
        else _joined(rewriter, name, left, right)
    )


def _quotient(rewriter: CallRewriter, call: Any) -> LinearSum | None:
    """A sum divided by a constant, or one constant for each channel, such as a standard deviation."""
    inner, divisor = read_sum(rewriter, call.args[0]), constant(call.args[1])
    if inner is None or divisor is None or not (np.isfinite(divisor) & (divisor != 0)).all():
        return None
    return _joined(rewriter, "relax.multiply", inner, LinearSum((), 1.0 / divisor.astype("float64")))


def _mean(rewriter: CallRewriter, call: Any) -> LinearSum | None:
    """The mean or sum of a dequantised tensor: the sum of its levels times scale / count, or times scale."""
    leaf, before, after = dequantised(rewriter, call.args[0], LEVELS), shape_of(call.args[0]), shape_of(call)
    sizes = [*(before or ()), *(after or ())]
    if leaf is None or not all(isinstance(size, int) and size > 0 for size in sizes):
        return None
    count = math.prod(before) // math.prod(after)
    data, scale, zero = leaf
    bits = 22 if str(data.ty.dtype) in BYTES else 15
    if count > 1 << bits:  # the sum must fit 32 bits
        return None
    axes = None if call.attrs.axis is None else integers(call.attrs.axis)
    wide = rewriter.emit(relax.op.astype(data, "int32"))
    total = rewriter.emit(relax.op.sum(wide, axes, bool(call.attrs.keepdims)))
    share = count if operator(call) == "relax.mean" else 1
    term = _levels_of(data, scale / share)
    assert term.bound is not None
    bias = np.array(-scale * zero * count / share)
    return LinearSum((replace(term, data=total, bound=term.bound * count),), bias)


def _matmul(rewriter: CallRewriter, call: relax.Call) -> LinearSum | None:
    """A matmul of dequantised tensors that no kernel of 8-bit operands computes, such as unlike batches."""
    parts = [_operand(rewriter, argument) for argument in call.args]
    terms = (shape_of(call.args[0]) or ())[-1:]
    if None in parts or not terms or not isinstance(terms[0], int):
        return None
    first, second = (part for part in parts if part is not None)
    bound = (first.bound or 0) * (second.bound or 0) * terms[0]
    if bound >= 1 << 31:
        return None
    product = rewriter.emit(relax.op.matmul(first.data, second.data, out_dtype="int32"))
    return LinearSum((Term(product, first.factor * second.factor, bound),), np.array(0.0))


def _operand(rewriter: CallRewriter, expr: relax.Expr) -> Term | None:
    """The levels less their zero point of a dequantised 8-bit tensor, whose axes may be permuted."""
    call = rewriter.definition(expr)
    axes = integers(call.attrs.axes) if operator(call) == "relax.permute_dims" and call.attrs.axes else None
    leaf = dequantised(rewriter, call.args[0] if axes else expr)
    if leaf is None:
        return None
    data, scale, zero = leaf
    term = _levels_less_zero(rewriter, LinearSum((_levels_of(data, scale),), np.array(-scale * zero)))
    if term is None or axes is None:
        return term
    return replace(term, data=rewriter.emit(relax.op.permute_dims(term.data, axes)))


def _limited(name: str, left: LinearSum, right: LinearSum) -> LinearSum | None:
    if not left.terms:
        left, right = right, left
    if right.terms or right.bias.size != 1:
        return None
    limit = float(right.bias.reshape(()))
    if name == "relax.maximum":
        return replace(left, low=max(left.low, limit), high=max(left.high, limit))
    return replace(left, low=min(left.low, limit), high=min(left.high, limit))


def _joined(rewriter: CallRewriter, name: str, left: LinearSum, right: LinearSum) -> LinearSum | None:
    if name == "relax.multiply" and left.terms and right.terms:
        return _product(rewriter, left, right)
    if left.limited or right.limited:
        return None
    if name != "relax.multiply":
        sign = 1.0 if name == "relax.add" else -1.0
        right_terms = tuple(replace(term, factor=sign * term.factor) for term in right.terms)
        return LinearSum((*left.terms, *right_terms), left.bias + sign * right.bias)
    if not left.terms:
        left, right = right, left
    terms = tuple(replace(term, factor=term.factor * right.bias) for term in left.terms)
    return LinearSum(terms, left.bias * right.bias)


def _product(rewriter: CallRewriter, left: LinearSum, right: LinearSum) -> LinearSum | None:
    """The product of two sums, in 32 bits: of levels less their zero points, or of sums with 15 bits."""
    parts = []
    for part in (left, right):
        bounded = _levels_less_zero(rewriter, part) or _in_15_bits(rewriter, part)
        if bounded is None:
            return None
        parts.append(bounded)
    first, second = parts
    if first.bound is None or second.bound is None:
        return None
    product = rewriter.emit(relax.op.multiply(first.data, second.data))
    factor = np.array(float(first.factor) * float(second.factor))
    return LinearSum((Term(product, factor, first.bound * second.bound),), np.array(0.0))


def _levels_less_zero(rewriter: CallRewriter, part: LinearSum) -> Term | None:
    """The sum of one term scale * (level - zero) as such, exactly; None for other sums."""
    if len(part.terms) != 1 or part.terms[0].factor.size != 1 or part.bias.size != 1 or part.limited:
        return None
    term, scale = part.terms[0], float(part.terms[0].factor.reshape(()))
    zero = -float(part.bias.reshape(())) / scale if scale else math.inf
    if str(term.data.ty.dtype) not in LEVELS or not abs(zero) <= 255 or abs(zero - round(zero)) > 1e-4:
        return None
    least, most = (level - round(zero) for level in LEVELS[str(term.data.ty.dtype)])
    wide = rewriter.emit(relax.op.astype(term.data, "int32"))
    if round(zero):
        wide = rewriter.emit(relax.op.subtract(wide, const(round(zero), "int32")))
    return Term(wide, np.array(scale), max(abs(least), abs(most)))


def _in_15_bits(rewriter: CallRewriter, part: LinearSum) -> Term | None:
    """The sum rounded to 2^15 steps either side of 0, such as the difference that is squared; else None."""
    reach = _reach(part)
    if reach is None or not 0 < reach < math.inf:
        return None
    step = reach / 2**_HALF
    shift = shift_in_32_bits(part, step, 0.25)
    if shift is None:
        return None
    total = scaled(rewriter, part, step, shift, "int32")
    for name, limit in ((relax.op.maximum, part.low), (relax.op.minimum, part.high)):
        if math.isfinite(limit):
            rounded = max(-(2**_HALF), min(2**_HALF, round(limit / step)))
            total = rewriter.emit(name(total, const(rounded, "int32")))
    return Term(total, np.array(step), 2**_HALF + 1)


def scaled(
    rewriter: CallRewriter, linear_sum: LinearSum, step: float, shift: int, kind: str, level: int = 0
) -> Any:
    """round(sum / step) + level of type `kind`, without the limits; factors are multiples of 2^-shift."""
    op, emit = relax.op, rewriter.emit
    bias = np.round(linear_sum.bias / step * 2.0**shift) + 2.0 ** (shift - 1) + level * 2.0**shift
    total: Any = None
    for term in linear_sum.terms:
        # The factor is stored in 32 bits: one multiplication of 32 by 32 bits, where the core has it.
        factor = const(np.round(term.factor / step * 2.0**shift), "int32")
        multiplier = emit(op.astype(factor, kind)) if kind == "int64" else factor
        product = emit(op.multiply(emit(op.astype(term.data, kind)), multiplier))
        total = product if total is None else emit(op.add(total, product))
    total = emit(op.add(total, const(bias, kind)))
    return emit(op.right_shift(total, const(shift, kind)))


def _reach(linear_sum: LinearSum) -> float | None:
    """The greatest magnitude of the sum; None where it is not known."""
    reach = float(np.abs(linear_sum.bias).max(initial=0.0))
    for term in linear_sum.terms:
        if term.bound is None:
            return None
        reach += float(np.abs(term.factor).max(initial=0.0)) * term.bound
    return reach


def shift_in_32_bits(linear_sum: LinearSum, step: float, error: float = _ERROR) -> int | None:
    """The shift with which sum / step fits 32 bits; None where that adds an error of more than `error`."""
    reach = _reach(linear_sum)
    if reach is None or not reach / step + 1.0 < 2.0**30:
        return None
    shift = 30 - math.frexp(reach / step + 1.0)[1]
    bounds = sum(term.bound or 0 for term in linear_sum.terms)
    return shift if 0 < shift < 31 and 0.5 * bounds / 2.0**shift < error else None


def fits_32_bits(linear_sum: LinearSum, step: float, shift: int, level: int) -> bool:
    """Whether sum / step + level fits 32 bits with the shift that `shift_in_32_bits` found."""
    reach = _reach(linear_sum)
    return reach is not None and (reach / step + 1.0 + abs(level)) * 2.0**shift < 2.0**31
