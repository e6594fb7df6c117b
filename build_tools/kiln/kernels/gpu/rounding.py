"""Rounding to the nearest integer, ties away from zero, on GPUs.

tirx.round is C's `round`, and TVM's interpreter of constants and its code for CPUs take it so. Its code
generator for CUDA, TVM 0.27, prints `nearbyint`, which rounds ties to even.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Call

from kiln.callbacks import structural_map
from kiln.tir.op_names import op_name

_FUNCTIONS = {"float32": "roundf", "float64": "round"}


def with_ties_away(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with calls of CUDA's functions in place of tirx.round; narrower floats round as float32."""

    def on_call(call: Call) -> Any:
        if op_name(call) != "round":
            return call
        dtype = str(call.ty.dtype)
        wide = dtype if dtype in _FUNCTIONS else "float32"
        return tirx.Cast(dtype, tirx.call_pure_extern(wide, _FUNCTIONS[wide], tirx.Cast(wide, call.args[0])))

    return func.with_body(structural_map(func.body, [(Call, on_call)]))
