"""Groups whose code stays small where producers are written out at every use, as TVM's schedules for GPUs do.

A value that is read twice doubles such code, and a chain of such values makes it exponential. An operator
whose element would hold more than LARGEST_TREE operators is marked opaque: it becomes a kernel of its own and
its readers read memory. Kernels for CPUs need no such marks, see tir/inline.py.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.tirx import PrimFunc

from kiln.graph.bindings import CallRewriter, operator
from kiln.lower.views.in_place_padding import OPAQUE
from kiln.tir.inline import LARGEST_TREE

# The greatest op_pattern of operators that are computed inside their readers (OpPatternKind: injective).
_WRITTEN_OUT = 2


def small_groups(mod: tvm.IRModule) -> tvm.IRModule:
    """The pass. Needs AnnotateTIROpPattern, and comes before fusion."""
    calls = [
        binding
        for block in mod["main"].body.blocks
        for binding in block.bindings
        if operator(binding.value) == "relax.call_tir"
    ]
    size: dict[Any, int] = {}
    cut = set()
    for number, binding in enumerate(calls):
        func = mod[binding.value.args[0]]
        total = 1 + sum(size.get(item, 0) for item in binding.value.args[1].fields)
        if int(func.attrs["op_pattern"]) <= _WRITTEN_OUT:
            size[binding.var] = total
            if total > LARGEST_TREE:
                cut.add(number)
                size[binding.var] = 0
    return _with_opaque(mod, cut) if cut else mod


def _with_opaque(mod: tvm.IRModule, cut: set[int]) -> tvm.IRModule:
    """`mod` with the calls of these numbers, in order, to functions that fuse with nothing."""
    seen = 0
    made: dict[Any, Any] = {}

    def rule(rewriter: CallRewriter, call: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen - 1 not in cut:
            return None
        variable = call.args[0]
        if variable not in made:
            func: PrimFunc = mod[variable].with_attr("op_pattern", OPAQUE)
            made[variable] = rewriter.builder_.add_func(func, f"{variable.name_hint}_apart")
        return relax.Call(call.op, [made[variable], *call.args[1:]], call.attrs, call.ty_args)

    rewriter = CallRewriter(mod, {"relax.call_tir": rule})
    rewriter.builder_.update_func(mod.get_global_var("main"), rewriter.visit_expr(mod["main"]))
    result = rewriter.builder_.get()
    return result.with_attrs(dict(mod.attrs)) if mod.attrs else result
