"""Opaque kernels: functions that are not loop nests (sorts, scans, scatters), as TVM's code on one thread."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Call

from kiln.callbacks import structural_map, structural_walk
from kiln.opinfo.attach import ATTRIBUTE
from kiln.tir.builder import Kernel


def _serial(loop: Any) -> Any:
    if loop.kind != tirx.ForKind.PARALLEL:
        return loop
    return tirx.For(
        loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body, annotations=loop.annotations
    )


def refuse_library(func: tirx.PrimFunc) -> None:
    """Raise ValueError for code that calls a function of TVM's runtime, which devices do not have."""

    def on_call(call: Any) -> None:
        if str(getattr(call.op, "name", "")) == "tirx.tvm_call_packed":
            raise ValueError(f"it calls {call.args[0].value}, a function of TVM's runtime")

    structural_walk(func.body, ((Call, on_call),))


def make(func: tirx.PrimFunc) -> Kernel:
    """A kernel from a fused function: all of its loops become serial, its inner buffers scratch memory.

    Op info is removed, so that equal code becomes one kernel, whatever operators it was made from. Raises
    ValueError if the code calls TVM's runtime (see `refuse_library`).
    """
    refuse_library(func)
    body = structural_map(func.body, ((tirx.For, _serial),))
    return Kernel(func.with_body(body).without_attr(ATTRIBUTE), None, {}, "opaque")
