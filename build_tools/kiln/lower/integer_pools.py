"""IntegerPools: average pooling of quantised tensors sums their integers, exactly, in int32.

    average(s (q - z)) = s (sum(q) - n z) / n

with n elements in a window, which dynamic sizes and padding may change from window to window. The tensor is
read as integers: without this pass the dequantised tensor would be stored, four times as many bytes. Integers
that are converted to float32 as they are, as in TFLite's models, have s = 1 and z = 0.
Guarantees: sums that may not fit stay in float.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import relax

from kiln.graph.bindings import CallRewriter, integers, operator, rewrite_calls
from kiln.kernels.operators.pooling import real_average
from kiln.lower.linear_sums import BYTES, dequantised
from kiln.opinfo import attach

# Elements of a window, by type: their sum fits into int32 with a zero point, and of int16 into a float32.
_MOST_SUMMED = {**dict.fromkeys(BYTES, 1 << 22), "int16": 1 << 9}


_MOVES = ("relax.permute_dims", "relax.reshape", "relax.expand_dims", "relax.squeeze")
_POOLS = tuple(f"relax.nn.avg_pool{rank}d" for rank in (1, 2, 3))


def integer_pools(mod: tvm.IRModule, raw: bool = True) -> tvm.IRModule:
    """Compute average pools of levels of 8 and 16 bits on integers; `raw`: also of converted integers."""

    def rule(rewriter: CallRewriter, call: Any) -> Any:
        return _pool(rewriter, call, raw)

    return relax.transform.DeadCodeElimination()(rewrite_calls(mod, dict.fromkeys(_POOLS, rule)))


def _pool(rewriter: CallRewriter, call: relax.Call, raw: bool) -> Any:
    attrs = call.attrs
    levels = _levels(rewriter, call.args[0], raw)
    if levels is None:
        return None
    if math.prod(integers(attrs.pool_size)) > _MOST_SUMMED[str(levels[0].ty.dtype)]:
        return None
    data, scale, zero_point = levels
    pooled = rewriter.builder_.call_te(
        real_average(call, scale, zero_point), data, primfunc_name_hint=call.op.name.split(".")[-1]
    )
    variable, module = pooled.args[0], rewriter.builder_.get()
    info = {**attach.describe(call), "out_dtype": "float32", "args": [{"param": 0}]}
    rewriter.builder_.update_func(variable, attach.with_ops(module[variable], [info]))
    return pooled


def _levels(rewriter: CallRewriter, expr: relax.Expr, raw: bool) -> tuple[Any, float, int] | None:
    """(levels, scale, zero point) of a dequantised or converted tensor, also moved; else None."""
    call = rewriter.definition(expr)
    if operator(call) in _MOVES:
        inner = _levels(rewriter, call.args[0], raw)
        if inner is None:
            return None
        moved = relax.Call(call.op, [inner[0], *call.args[1:]], call.attrs, call.ty_args)
        return rewriter.emit(moved), *inner[1:]
    if operator(call) == "relax.astype" and str(call.args[0].ty.dtype) in _MOST_SUMMED and raw:
        return call.args[0], 1.0, 0
    return dequantised(rewriter, expr, _MOST_SUMMED)
