"""Limit the code size of fused groups on GPUs, where TVM's schedules inline a producer at every use.

A value that is read twice doubles the inlined code, and a chain of such values makes it exponential. An
operator whose element would contain more than LARGEST_TREE operators is marked opaque: it becomes a separate
kernel, and its readers load the result from memory. Kernels for CPUs need no such marks, see tir/inline.py.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.tirx import PrimFunc

from kiln.graph.bindings import CallRewriter, operator
from kiln.lower.views.in_place_padding import OPAQUE
from kiln.tir.inline import LARGEST_TREE

# The greatest op_pattern of operators that are inlined into their readers (OpPatternKind: injective).
_INLINED = 2


def small_groups(mod: tvm.IRModule) -> tvm.IRModule:
    """Mark functions as opaque where groups would grow; runs after AnnotateTIROpPattern and before fusion."""
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
        calls_in_group = 1 + sum(size.get(item, 0) for item in binding.value.args[1].fields)
        if int(func.attrs["op_pattern"]) <= _INLINED:
            size[binding.var] = calls_in_group
            if calls_in_group > LARGEST_TREE:
                cut.add(number)
                size[binding.var] = 0
    return _with_opaque(mod, cut) if cut else mod


def _with_opaque(mod: tvm.IRModule, cut: set[int]) -> tvm.IRModule:
    """`mod` where the call_tir calls with an index in `cut` call copies of their functions marked opaque."""
    count = 0  # of calls visited so far
    opaque: dict[Any, Any] = {}  # variable of a function → of its opaque copy

    def rule(rewriter: CallRewriter, call: relax.Call) -> Any:
        nonlocal count
        count += 1
        if count - 1 not in cut:
            return None
        variable = call.args[0]
        if variable not in opaque:
            func: PrimFunc = mod[variable].with_attr("op_pattern", OPAQUE)
            opaque[variable] = rewriter.builder_.add_func(func, f"{variable.name_hint}_apart")
        return relax.Call(call.op, [opaque[variable], *call.args[1:]], call.attrs, call.ty_args)

    rewriter = CallRewriter(mod, {"relax.call_tir": rule})
    rewriter.builder_.update_func(mod.get_global_var("main"), rewriter.visit_expr(mod["main"]))
    result = rewriter.builder_.get()
    return result.with_attrs(dict(mod.attrs)) if mod.attrs else result
