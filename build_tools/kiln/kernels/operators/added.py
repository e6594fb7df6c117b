"""Legalisation of the operators that Relax lacks (frontend/added_operators.py): functions in TIR."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax

from kiln.callbacks import mutator
from kiln.frontend import added_operators, loops
from kiln.frontend.linear_attention import NAME as LINEAR_ATTENTION
from kiln.frontend.recurrent import NAME as RECURRENT
from kiln.kernels.operators.linear_attention import linear_attention
from kiln.kernels.operators.loop_row import loop_row
from kiln.kernels.operators.recurrent import recurrent
from kiln.opinfo import attach
from kiln.opinfo.kinds import OPAQUE, PATTERN

# By name: the call of a function that computes the operator. It may have more results than the operator.
RULES: dict[str, Callable[[Any, Any], Any]] = {
    LINEAR_ATTENTION: linear_attention,
    RECURRENT: recurrent,
    loops.ROW: loop_row,
}


@mutator
class _Legalize(relax.PyExprMutator):  # type: ignore[misc]  # tvm is untyped
    def visit_call_(self, call: relax.Call) -> Any:
        call = self.visit_expr_post_order(call)
        name = added_operators.name_of(call)
        if name not in RULES:
            return call
        call_tir = RULES[name](self.builder_, call)
        variable = call_tir.args[0]
        attributes = added_operators.attributes_of(call)
        about = {
            "name": variable.name_hint.rstrip("0123456789"),
            "attrs": {"operator": name, **attributes},
            "out_dtype": "",
            "args": [{"param": index} for index in range(len(call_tir.args[1].fields))],
        }
        # TVM would take a loop without reads and writes for one that it may fuse.
        function = self.builder_.get()[variable].with_attr(PATTERN, OPAQUE)
        self.builder_.update_func(variable, attach.with_ops(function, [about]))
        count = len(call.ty.fields) if isinstance(call.ty, relax.TupleType) else 1
        values = self.builder_.emit(call_tir)
        if count == 1:
            return values if not isinstance(call_tir.ty, relax.TupleType) else relax.TupleGetItem(values, 0)
        return relax.Tuple([self.builder_.emit(relax.TupleGetItem(values, i)) for i in range(count)])


def legalize_added(mod: tvm.IRModule) -> tvm.IRModule:
    """Replace the operators that Relax lacks by calls of functions with op info."""
    rewriter = _Legalize(mod)
    for variable, function in list(mod.functions_items()):
        if isinstance(function, relax.Function):
            rewriter.builder_.update_func(variable, rewriter.visit_expr(function))
    return rewriter.builder_.get()


def added_operator(ops: list[attach.OpInfo]) -> str | None:
    """The name of the operator that a function computes, if Relax lacks it."""
    return ops[0]["attrs"].get("operator") if len(ops) == 1 else None
