"""Tiny weights of convolutions and matmuls become zeros: subnormal float32 numbers.

Training with weight decay leaves such weights in channels that nothing needs any more. Intel's processors
interrupt a multiply-add for about 140 cycles if an operand is subnormal: a layer of whose weights a fifth
were subnormal took 195 us (Emerald Rapids).

Guarantees: a term of a sum changes by at most 2^-126 of its other operand, and only in operands whose
greatest value is at least 2^-60: less than the rounding error of sums with the greatest values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

from kiln.graph.bindings import Array, CallRewriter, const, constant, rewrite_calls

_TINY, _GREATEST = np.finfo("float32").tiny, 2.0**-60  # the least that is not subnormal


def without_tiny(weights: Array) -> Array | None:
    """A copy of `weights` with zeros in place of tiny ones; None where there are none, or all are small."""
    size = np.abs(weights)
    tiny = (size < _TINY) & (weights != 0)
    if not tiny.any() or not size.max() >= np.float32(_GREATEST):
        return None
    return np.where(tiny, np.float32(0), weights)


def _replaced(rewriter: CallRewriter, call: relax.Call) -> Any:
    operands = list(call.args)
    changed = False
    for position, operand in enumerate(operands):
        value = constant(rewriter.definition(operand))
        if value is None or str(value.dtype) != "float32" or not value.size:
            continue
        new = without_tiny(value)
        if new is not None:
            operands[position], changed = const(new, "float32"), True
    return relax.Call(call.op, operands, call.attrs, call.ty_args) if changed else None


def tiny_weights(mod: tvm.IRModule) -> tvm.IRModule:
    """Apply the pass to the convolutions and matmuls of `mod`."""
    return rewrite_calls(mod, {"relax.nn.conv2d": _replaced, "relax.matmul": _replaced})
