"""Requantise: one multiplication takes an integer sum to the levels of its quantised result.

The integer form of a convolution or product (kiln.graph.integer) is sum → float * scale → + bias → activation
→ quantize, which divides by the scale of the result. With m = scale / scale of the result this becomes

    quantize((sum + bias / scale) * m, scale 1)

where bias / scale is a whole number, as in files whose bias is quantised with scale; other biases are divided
by the scale of the result. ReLU and limits are divided, too, and left out where the type of the result clips
at the same level. It is the arithmetic of ONNX Runtime's integer kernels: m in float32, one rounding, half to
even. Needs: quantize with one zero point. Guarantees: results change only where float32 rounds a value near
the middle between two levels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax

from kiln.graph.bindings import (
    Array,
    CallRewriter,
    const,
    constant,
    count_uses,
    number,
    operator,
    rewrite_calls,
)

_LIMITS = {"relax.maximum": relax.op.maximum, "relax.minimum": relax.op.minimum}
_WHOLE = 1e-3  # greatest distance of bias / scale from a whole number
_GREATEST = 1 << 24  # of a bias, in units of the accumulator
_TYPES = ("int8", "uint8", "int16", "uint16")


@dataclass
class _Chain:
    """An epilogue between an integer sum and quantize. `limits`: operators with a constant, in order."""

    total: Any
    scale: Array
    bias: Array | None
    limits: list[tuple[str, float]]


class _Requantise:
    """The rule; `uses`: number of readers of each variable."""

    def __init__(self, uses: Mapping[Any, int]) -> None:
        self.uses = uses

    def _single(self, rewriter: CallRewriter, expr: relax.Expr) -> Any:
        """The call that `expr` is bound to if nothing else reads it, else None."""
        alone = isinstance(expr, relax.Var) and self.uses.get(expr, 0) == 1
        return rewriter.definition(expr) if alone else None

    def _chain(self, rewriter: CallRewriter, expr: relax.Expr) -> _Chain | None:
        """The epilogue that ends in `expr`, or None."""
        limits: list[tuple[str, float]] = []
        call = self._single(rewriter, expr)
        while operator(call) in (*_LIMITS, "relax.nn.relu", "relax.clip"):
            name = str(operator(call))
            if name == "relax.nn.relu":
                limits.append(("relax.maximum", 0.0))
            elif name == "relax.clip":
                limits.append(("relax.maximum", float(call.args[1].value)))
                limits.append(("relax.minimum", float(call.args[2].value)))
            else:
                level = number(call.args[1])
                if level is None:
                    return None
                limits.append((name, level))
            call = self._single(rewriter, call.args[0])
        bias = None
        if operator(call) == "relax.add":
            bias = constant(call.args[1])
            if bias is None:
                return None
            call = self._single(rewriter, call.args[0])
        if operator(call) != "relax.multiply":
            return None
        scale = constant(call.args[1])
        cast = self._single(rewriter, call.args[0])
        sums = ("int32", "int64")
        if scale is None or operator(cast) != "relax.astype" or str(cast.args[0].ty.dtype) not in sums:
            return None
        if bias is not None and (bias.ndim > len(call.ty.shape) or bias.size not in (1, scale.size)):
            return None
        return _Chain(cast.args[0], scale, bias, limits[::-1])

    def __call__(self, rewriter: CallRewriter, call: relax.Call) -> Any:
        """relax.quantize of an integer sum's epilogue → one multiplication and quantize with scale 1."""
        level, zero = _level(call), _zero_point(call)
        dtype = str(call.attrs.out_dtype)
        if level is None or zero is None or dtype not in _TYPES:
            return None
        chain = self._chain(rewriter, call.args[0])
        if chain is None:
            return None
        op, emit = relax.op, rewriter.emit
        with np.errstate(over="ignore"):
            factor = chain.scale.astype("float32") / level.astype("float32")
        if not np.isfinite(factor).all():  # a sum of 0 would not stay 0
            return None
        sums, unfused = _with_bias(rewriter, chain)
        value = emit(op.multiply(emit(op.astype(sums, "float32")), const(factor, "float32")))
        if unfused is not None:
            value = emit(op.add(value, const(unfused.astype("float64") / level, "float32")))
        limits = np.iinfo(dtype)
        for name, bound in chain.limits:
            ends = {"relax.maximum": limits.min - zero, "relax.minimum": limits.max - zero}
            inside = bound / level > ends[name] if name == "relax.maximum" else bound / level < ends[name]
            if np.any(inside):
                value = emit(_LIMITS[name](value, const(bound / level, "float32")))
        return op.quantize(value, const(1.0, "float32"), const(zero, str(call.args[2].ty.dtype)), 0, dtype)


def _level(call: relax.Call) -> Array | None:
    """The scale of a quantize: one number, or those of an axis in the rank of the result; None: computed."""
    scale = constant(call.args[1])
    if scale is None or scale.size == 1:
        return scale if scale is None else scale.astype("float64").reshape(())
    rank = len(call.ty.shape)
    shape = [1] * rank
    shape[int(call.attrs.axis) % rank] = scale.size
    return scale.astype("float64").reshape(shape)


def _zero_point(call: relax.Call) -> int | None:
    """The one zero point of a quantize; None for several."""
    points = constant(call.args[2])
    return None if points is None or not points.size or np.ptp(points) else int(points.reshape(-1)[0])


def _with_bias(rewriter: CallRewriter, chain: _Chain) -> tuple[Any, Array | None]:
    """The sum with the bias added to it as integers, and the bias that is left to add in float."""
    if chain.bias is None:
        return chain.total, None
    ratio = chain.bias.astype("float64") / chain.scale.astype("float64").reshape(
        chain.scale.shape if chain.scale.size > 1 else ()
    )
    rounded = np.rint(ratio)
    if np.abs(ratio - rounded).max(initial=0) > _WHOLE or np.abs(rounded).max(initial=0) > _GREATEST:
        return chain.total, chain.bias
    inner, kind = rewriter.definition(chain.total), str(chain.total.ty.dtype)
    offset = constant(inner.args[1]) if operator(inner) == "relax.add" else None
    if offset is not None:  # the constant of the zero points
        return rewriter.emit(relax.op.add(inner.args[0], const(offset + rounded.astype("int64"), kind))), None
    return rewriter.emit(relax.op.add(chain.total, const(rounded, kind))), None


def requantise(mod: tvm.IRModule) -> tvm.IRModule:
    """Let one multiplication rescale every integer sum that is quantised again."""
    return rewrite_calls(mod, {"relax.quantize": _Requantise(count_uses(mod))})
