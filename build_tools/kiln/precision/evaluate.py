"""Run fused functions on this machine: what kernels for another one compute, before they are scheduled.

TVM's own virtual machine and LLVM do it. The functions are those that the GPU's schedules start from, with
the same roundings; only the order of sums is another one. The schedule here is as simple as can be: the last
axis of what is stored in vectors, the first ones on threads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax, s_tir, tirx
from tvm.ir import Call

from kiln.callbacks import structural_map
from kiln.tir.symbols import is_open

Array = npt.NDArray[Any]


class Evaluator:
    """`main` of a module of fused PrimFuncs, with the values of its parameters."""

    def __init__(self, mod: tvm.IRModule, params: Mapping[str, Array]) -> None:
        main = mod["main"]
        self._inputs = list(main.params[: int(main.attrs["num_input"])])
        self._dims = json.loads(str(main.attrs.get("kiln.dims", "{}")))  # variable → dimension, divisor
        self._params = [tvm.runtime.tensor(params[p.name]) for p in main.params[len(self._inputs) :]]
        for variable, func in list(mod.functions_items()):
            if isinstance(func, tirx.PrimFunc):
                mod.update_func(variable, _scheduled(_with_erf(func)))
        target = tvm.target.Target({"kind": "llvm", "mcpu": _this_cpu()})
        built = relax.build(mod, target)
        self._machine = relax.VirtualMachine(built, tvm.cpu())

    def run(self, inputs: Sequence[Array], sizes: Mapping[str, int]) -> list[Array]:
        """The outputs for these inputs; `sizes`: by name each dimension that is open."""
        given = iter(inputs)
        arguments = [
            tvm.runtime.ShapeTuple([self._size(value.name, sizes) for value in param.ty.values])
            if isinstance(param.ty, relax.ShapeType)
            else tvm.runtime.tensor(np.ascontiguousarray(next(given)))
            for param in self._inputs
        ]
        result = self._machine["main"](*arguments, *self._params)
        found = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
        return [tensor.numpy() for tensor in found]

    def _size(self, variable: str, sizes: Mapping[str, int]) -> int:
        """What a variable of `main` is: a dimension, or a part of one."""
        known = self._dims.get(variable, {"dim": variable, "divide": 1})
        return sizes[known["dim"]] // int(known["divide"])


def _this_cpu() -> str:
    return str(tvm.get_global_func("target.llvm_get_system_cpu")())


def _with_erf(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with the C library's erf, for which TVM 0.27 has no rule on CPUs."""

    def on_call(call: Any) -> Any:
        if str(getattr(call.op, "name", "")) != "tirx.erf":
            return call
        return tirx.call_pure_extern(str(call.ty.dtype), "erff", call.args[0])

    return func.with_body(structural_map(func.body, ((Call, on_call),)))


def _scheduled(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with vectors and threads where its blocks are plain loops; as it is where that cannot be."""
    schedule = s_tir.Schedule(func)
    try:
        blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    except Exception:  # no root block: loops that somebody wrote
        return func
    for block in blocks:
        try:
            _schedule(schedule, block)
        except Exception:  # TVM's own kinds; the block stays plain
            continue
    return schedule.mod["main"]


def _schedule(schedule: Any, block: Any) -> None:
    loops = schedule.get_loops(block)
    kinds = [int(axis.iter_type) for axis in schedule.get(block).iter_vars]
    if len(kinds) != len(loops):
        return
    free = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == tirx.IterVar.DataPar]
    sums = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == tirx.IterVar.CommReduce]
    if not free:
        return
    if len(free) > 1:
        *outer, inner = free
        schedule.reorder(*outer, *sums, inner)
        first = schedule.fuse(*outer) if not sums or len(outer) > 1 else outer[0]
        schedule.parallel(first)
    else:
        inner = free[0]
        schedule.reorder(*sums, inner)
    if sums:
        schedule.decompose_reduction(block, sums[0])
    if not is_open(schedule.get(inner).extent):
        schedule.vectorize(inner)
