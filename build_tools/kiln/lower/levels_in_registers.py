"""Levels that only a cheap function of the same element reads stay in registers.

Quantisers that know few fusions quantise the result of a convolution and that of its ReLU6, or of a factor:

    quantize(f(dequantize(quantize(x))))

The inner tensor would be stored, and a second kernel would read it. Its rounding is kept, as one operator on
floats, in the kernel of x: a vector of floats costs less to limit and round than to pack into bytes and back.
Fusion stops at the reshape to the same shape that follows each other quantize. Guarantees: same results. A
chain that is a table (kiln.lower.tables), and one whose levels something else reads, stay separate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax, te

from kiln.extents import shape_of
from kiln.graph.bindings import CallRewriter, Rule, constant, count_uses, number, operator, rewrite_calls
from kiln.graph.reshapes import same_shape
from kiln.kernels.operators.legalize import RANGES, inverse_of
from kiln.lower.prepare import store_quantised
from kiln.opinfo import attach
from kiln.tir.vector_expr import f32, round_small

_UNARY = ("relax.abs", "relax.clip", "relax.negative", "relax.nn.leakyrelu", "relax.nn.relu")
_LIMITS = ("relax.maximum", "relax.minimum", "relax.nn.relu")
_ROUNDED = 0.49  # levels that a number is rounded up or down by, and less
_BINARY = (
    "relax.add", "relax.divide", "relax.maximum", "relax.minimum", "relax.multiply", "relax.subtract",
)  # fmt: skip


def stored_levels(on_gpu: bool, mod: tvm.IRModule) -> tvm.IRModule:
    """Store quantised tensors as integers, and on CPUs such levels not at all."""
    mod = store_quantised(mod)
    if on_gpu:
        return mod
    rules = {"relax.quantize": _passed(count_uses(mod))}
    return relax.transform.DeadCodeElimination()(rewrite_calls(mod, rules))


def _passed(uses: Mapping[Any, int]) -> Rule:
    """The rule that computes the operand of a quantize from levels in registers; `uses`: readers."""

    def single(rewriter: CallRewriter, expr: Any) -> Any:
        """The call that `expr` is bound to if nothing else reads it, else None."""
        return rewriter.definition(expr) if uses.get(expr, 0) == 1 else None

    def rule(rewriter: CallRewriter, call: relax.Call) -> Any:
        chain: list[Any] = []
        step = single(rewriter, call.args[0])
        while step is not None and _is_cheap(step):
            chain.append(step)
            step = single(rewriter, step.args[0])
        if operator(step) != "relax.dequantize":
            return None
        stored = single(rewriter, step.args[0])
        if operator(stored) != "relax.reshape":
            return None
        levels = single(rewriter, stored.args[0])
        if operator(levels) != "relax.quantize" or not same_shape(shape_of(levels), shape_of(call)):
            return None
        ends = _ends(call) if all(operator(each) in _LIMITS for each in chain) else None
        kept = [each for each in reversed(chain) if ends is None or not _is_left_out(each, ends)]
        value = _rounded(rewriter, levels, step, ends, bool(kept))
        if value is None:
            return None
        for each in kept:
            value = rewriter.emit(relax.Call(each.op, [value, *each.args[1:]], each.attrs, each.ty_args))
        return relax.Call(call.op, [value, *call.args[1:]], call.attrs, call.ty_args)

    return rule


def _ends(call: relax.Call) -> tuple[float, float] | None:
    """The numbers below and above which a quantize has its least and greatest level; None for others."""
    scale, zero = (number(argument) for argument in call.args[1:3])
    dtype = str(call.attrs.out_dtype)
    if dtype not in RANGES or scale is None or zero is None or scale <= 0:
        return None
    least, most = RANGES[dtype]
    return (least - zero + _ROUNDED) * scale, (most - zero - _ROUNDED) * scale


def _is_left_out(call: Any, ends: tuple[float, float]) -> bool:
    """Whether a limit changes no level of a quantize that follows, with the `ends` of `_ends`."""
    name = operator(call)
    if name == "relax.nn.relu":
        return ends[0] >= 0
    bound = number(call.args[1])
    if bound is None:
        return False
    return bound <= ends[0] if name == "relax.maximum" else bound >= ends[1]


def _rounded(
    rewriter: CallRewriter,
    levels: relax.Call,
    numbers: relax.Call,
    ends: tuple[float, float] | None,
    limited: bool,
) -> Any:
    """The float32 tensor dequantize(quantize(x)), of one scale and zero point; None for others.

    ends: as of `_ends`, where limits alone follow; limits of the levels that are beyond are left out.
    limited: whether limits follow. These, and an upper limit, need numbers: NaN is the least level.
    """
    dtype, kinds = str(levels.attrs.out_dtype), (str(levels.args[0].ty.dtype), str(numbers.ty.dtype))
    given = [number(argument) for call in (levels, numbers) for argument in call.args[1:3]]
    if dtype not in RANGES or kinds != ("float32", "float32") or None in given or given[1] != given[3]:
        return None
    scale, zero, factor, _ = (float(value) for value in given if value is not None)
    least, most = (end - zero for end in RANGES[dtype])
    inverse = inverse_of(scale)
    needs_most = ends is None or most * factor < ends[1]
    needs_least = ends is None or limited or needs_most or least * factor > ends[0]

    def compute(data: Any) -> Any:
        def element(*indices: Any) -> Any:
            x = data(*indices)
            x = x / f32(scale) if inverse is None else x * f32(inverse)
            x = te.max(x, f32(least)) if needs_least else x
            x = te.min(x, f32(most)) if needs_most else x
            return round_small(x) * f32(factor)

        return te.compute(data.shape, element, name="levels")

    made = rewriter.builder_.call_te(compute, levels.args[0], primfunc_name_hint="levels")
    info = {"name": "levels", "attrs": {}, "out_dtype": "float32", "args": [{"param": 0}]}
    module = rewriter.builder_.get()
    rewriter.builder_.update_func(made.args[0], attach.with_ops(module[made.args[0]], [info]))
    return rewriter.emit(made)


def _is_cheap(call: Any) -> bool:
    """Whether a call computes each element from that of its first operand, in few instructions."""
    name = operator(call)
    if name in _BINARY:
        shapes = shape_of(call), shape_of(call.args[0])
        return constant(call.args[1]) is not None and same_shape(*shapes)
    return name in _UNARY
