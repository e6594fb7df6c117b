"""Evaluate fused functions for a GPU on the host, before they are scheduled for the GPU.

TVM's virtual machine runs them, compiled by LLVM. The functions are the input of the GPU's schedules too,
with the same roundings; only the order of summation differs. The schedule here is simple: the last axis of
each result is vectorised, and the outer axes run in parallel threads.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, s_tir, tirx
from tvm.ir import Call

from kiln.arrays import Array
from kiln.callbacks import quiet_callback, structural_map, structural_walk
from kiln.kernels.gpu import half
from kiln.tir.symbols import is_dynamic


class Evaluator:
    """Runs `main` of a module of fused PrimFuncs, with the parameter values `params`, by name.

    `not_finite`: by name of the function, how many infinities and NaNs the runs so far stored in 16 bits
    where all operands of the function were finite.
    """

    def __init__(self, mod: tvm.IRModule, params: Mapping[str, Array]) -> None:
        self.not_finite: Counter[str] = Counter()
        self._results: dict[str, list[int]] = {}
        main = mod["main"]
        self._inputs = list(main.params[: int(main.attrs["num_input"])])
        self._dims = json.loads(str(main.attrs.get("kiln.dims", "{}")))  # variable → dimension, divisor
        self._params = [tvm.runtime.tensor(params[p.name]) for p in main.params[len(self._inputs) :]]
        for variable, func in list(mod.functions_items()):
            if isinstance(func, tirx.PrimFunc):
                self._results[variable.name_hint] = _results(func)
                mod.update_func(variable, _scheduled(_with_erf(func)))
        target = tvm.target.Target({"kind": "llvm", "mcpu": _this_cpu()})
        built = relax.build(mod, target)
        self._machine = relax.VirtualMachine(built, tvm.cpu())
        self._machine.set_instrument(quiet_callback(self._count))

    def _count(self, _function: Any, name: str, before: bool, _result: Any, *arguments: Any) -> None:
        """Count infinities and NaNs that a function stored; the virtual machine calls it around each call."""
        results = self._results.get(name)
        if before or results is None:
            return
        not_finite = {
            position: _not_finite(argument)
            for position, argument in enumerate(arguments)
            if isinstance(argument, tvm.runtime.Tensor)
        }
        if not any(count for position, count in not_finite.items() if position not in results):
            narrow = [r for r in results if str(arguments[r].dtype) in (half.HALF, half.BRAIN)]
            self.not_finite[name] += sum(not_finite[position] for position in narrow)

    def run(self, inputs: Sequence[Array], sizes: Mapping[str, int]) -> list[Array]:
        """The outputs for `inputs`; `sizes`: size of each dynamic dimension, by name."""
        remaining = iter(inputs)
        arguments = [
            tvm.runtime.ShapeTuple([self._size(value.name, sizes) for value in param.ty.values])
            if isinstance(param.ty, relax.ShapeType)
            else tvm.runtime.tensor(np.ascontiguousarray(next(remaining)))
            for param in self._inputs
        ]
        result = self._machine["main"](*arguments, *self._params)
        outputs = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
        return [tensor.numpy() for tensor in outputs]

    def _size(self, variable: str, sizes: Mapping[str, int]) -> int:
        """The value of a shape variable of `main`: a dimension, or a dimension divided by a constant."""
        entry = self._dims.get(variable, {"dim": variable, "divide": 1})
        return sizes[entry["dim"]] // int(entry["divide"])


def _results(func: tirx.PrimFunc) -> list[int]:
    """Positions of the parameters of `func` that it writes."""
    written: set[Any] = set()
    structural_walk(func.body, [(tirx.BufferStore, lambda store: written.add(store.buffer))])
    return [position for position, param in enumerate(func.params) if param in written]


def _not_finite(tensor: Any) -> int:
    """The number of elements of a tensor that are infinite or NaN."""
    values = tensor.numpy()
    if str(tensor.dtype) == half.BRAIN:
        values = values.astype(np.float32)
    return int(np.count_nonzero(~np.isfinite(values))) if values.dtype.kind == "f" else 0


def _this_cpu() -> str:
    return str(tvm.get_global_func("target.llvm_get_system_cpu")())


def _with_erf(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with the C library's erf, for which TVM 0.27 has no rule on CPUs."""

    def on_call(call: relax.Call) -> Any:
        if str(getattr(call.op, "name", "")) != "tirx.erf":
            return call
        return tirx.call_pure_extern(str(call.ty.dtype), "erff", call.args[0])

    return func.with_body(structural_map(func.body, ((Call, on_call),)))


def _scheduled(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with its blocks vectorised and parallel; a block that cannot be scheduled stays as it is."""
    schedule = s_tir.Schedule(func)
    try:
        blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    except Exception:  # no root block: loops that are scheduled by hand
        return func
    for block in blocks:
        try:
            _schedule(schedule, block)
        except Exception:  # TVM's own classes; the block stays as it is
            continue
    return schedule.mod["main"]


def _schedule(schedule: s_tir.Schedule, block: Any) -> None:
    """Vectorise the last data-parallel axis of `block`, and run its other data-parallel axes in threads."""
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
    if not is_dynamic(schedule.get(inner).extent):
        schedule.vectorize(inner)
