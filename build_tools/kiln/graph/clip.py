"""ClipToMinMax: relax.clip becomes minimum and maximum with scalars.

TVM 0.27 has no layout rule for relax.clip, so ConvertLayout puts a transpose before and after each one.
Guarantees: no relax.clip is left; results are unchanged.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from kiln.graph.bindings import CallRewriter, const, rewrite_calls


def _clip(rewriter: CallRewriter, call: relax.Call) -> Any:
    data, low, high = call.args
    dtype = str(data.ty.dtype)
    number = float if "float" in dtype else int  # a float cannot hold the greatest int64
    upper = rewriter.emit(relax.op.minimum(data, const(number(high.value), dtype)))
    return relax.op.maximum(upper, const(number(low.value), dtype))


def clip_to_min_max(mod: tvm.IRModule) -> tvm.IRModule:
    """Replace every relax.clip by relax.minimum and relax.maximum."""
    return rewrite_calls(mod, {"relax.clip": _clip})
