"""Each elementwise reader of a dequantised tensor dequantises it again, in registers.

Fusion merges a dequantize with its only reader. One that a residual sum and a normalisation read, or two
sums, would be a kernel of its own, which stores floats: four times as many bytes for each reader.
Needs: PrimFuncs with op info and op_pattern. Guarantees: same results. Readers that are not elementwise, or
that broadcast the tensor, still share one.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.tirx import PrimFunc

from kiln.extents import shape_of
from kiln.graph.bindings import CallRewriter, count_uses, operator, rewrite_calls
from kiln.graph.reshapes import same_shape
from kiln.opinfo.attach import of
from kiln.opinfo.kinds import PATTERN

_BROADCAST = 1  # greatest op_pattern of operators whose elements depend on one element of each operand


def own_dequantise(mod: tvm.IRModule) -> tvm.IRModule:
    """Dequantise again for each elementwise reader; runs after AnnotateTIROpPattern and before fusion."""
    uses = count_uses(mod)
    functions = {v.name_hint: func for v, func in mod.functions_items() if isinstance(func, PrimFunc)}
    names = {name: [op["name"] for op in of(func)] for name, func in functions.items()}

    def is_shared(rewriter: CallRewriter, call: Any, expr: relax.Expr) -> bool:
        source = rewriter.definition(expr)
        return (
            operator(source) == "relax.call_tir"
            and names[source.args[0].name_hint] == ["dequantize"]
            and uses.get(expr, 0) > 1
            and same_shape(shape_of(expr), shape_of(call))
        )

    def rule(rewriter: CallRewriter, call: relax.Call) -> Any:
        func = functions[call.args[0].name_hint]
        is_elementwise = int(func.attrs[PATTERN]) <= _BROADCAST if PATTERN in func.attrs else False
        if not is_elementwise or not isinstance(call.ty, relax.TensorType):
            return None
        shared = [is_shared(rewriter, call, field) for field in call.args[1].fields]
        if not any(shared):
            return None
        fields = [
            rewriter.emit(_again(rewriter.definition(field))) if own else field
            for field, own in zip(call.args[1].fields, shared, strict=True)
        ]
        return relax.Call(
            call.op, [call.args[0], relax.Tuple(fields), *call.args[2:]], call.attrs, call.ty_args
        )

    return relax.transform.DeadCodeElimination()(rewrite_calls(mod, {"relax.call_tir": rule}))


def _again(call: relax.Call) -> Any:
    return relax.Call(call.op, list(call.args), call.attrs, call.ty_args)
