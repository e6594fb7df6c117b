"""Bindings of integers, replaced by their values before TVM's passes simplify a kernel.

TVM 0.27's simplifiers replace such variables by their values in any case, and keep the binding. But at each
binding they compute a set of integers for the variable, and prove one inequality for each loop around it:
that took two thirds of the time in which a kernel with dynamic sizes is lowered.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad

from kiln.callbacks import structural_map, structural_walk


def inline_bindings(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` without its bindings of integers that are computed from variables and constants alone.

    A value that reads memory or calls a function stays bound, so that it is computed once.
    """
    values: dict[Any, Any] = {}

    def on_bind(node: Any) -> None:
        if str(node.var.ty.dtype).startswith("int") and not _reads(node.value):
            values[node.var] = node.value

    structural_walk(func.body, [(tirx.Bind, on_bind)])
    if not values:
        return func

    def gone(node: Any) -> Any:
        return tirx.Evaluate(tirx.IntImm("int32", 0)) if node.var in values else node

    whole: dict[Any, Any] = {}  # values in which no such variable is left

    def on_variable(var: Any) -> Any:
        return whole.get(var, var)

    for var, value in values.items():
        whole[var] = structural_map(value, ((tirx.Var, on_variable),))
    return func.with_body(
        structural_map(func.body, ((tirx.Bind, gone), (tirx.Var, on_variable)), order="pre")
    )


def _reads(value: Any) -> bool:
    """Whether `value` reads memory or calls a function."""
    first_load = structural_walk(value, [((TensorLoad, tvm.ir.Call), lambda _: tvm_ffi.VisitInterrupt())])
    return first_load is not None
