"""FlattenBuffer for kernels of open sizes, with every index left as it stands.

TVM 0.27's pass simplifies each index for itself, with what bound variables stand for written out: where
sizes are open these are quotients inside quotients, and one product of attention takes up to half a minute.
Nearly all that such kernels index is flat from the start, and StmtSimplify, which runs later on statements
as a whole, takes a hundredth of that for the same.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import TensorLoad

from kiln.callbacks import structural_map
from kiln.kernels.symbols import int64


def flatten(mod: tvm.IRModule) -> tvm.IRModule:
    """The functions of `mod` on buffers of one axis, whose shapes are numbers.

    Like FlattenBuffer it keeps the parameters and declares, at the start of a body, a flat buffer for each.
    """
    functions = {variable: _flat(func) for variable, func in mod.functions_items()}
    return tvm.IRModule(functions, attrs=mod.attrs)


def _flat(func: tirx.PrimFunc) -> tirx.PrimFunc:
    made: dict[Any, Any] = {}

    def flat(buffer: Any) -> Any:
        if buffer not in made:
            size = math.prod(int(extent) for extent in buffer.shape)
            made[buffer] = tirx.decl_buffer([int64(size)], str(buffer.dtype), buffer.name)
        return made[buffer]

    def place(buffer: Any, indices: Any) -> list[Any]:
        if len(buffer.shape) == 1:
            return list(indices)
        position: Any = int64(0)
        for index, extent in zip(indices, buffer.shape, strict=True):
            position = position * int64(int(extent)) + index
        return [position]

    def on_load(load: Any) -> Any:
        return tirx.BufferLoad(flat(load.source), place(load.source, load.indices))

    def on_store(store: Any) -> Any:
        return tirx.BufferStore(flat(store.buffer), store.value, place(store.buffer, store.indices))

    def on_allocation(statement: Any) -> Any:
        return tirx.AllocBuffer(flat(statement.buffer))

    rules = ((TensorLoad, on_load), (tirx.BufferStore, on_store), (tirx.AllocBuffer, on_allocation))
    body = structural_map(func.body, rules)
    params = [param for param in func.params if tirx.is_buffer_var(param)]
    declared = [tirx.DeclBuffer(flat(param), data=tirx.buffer_data(param)) for param in params]
    statements = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    return func.with_body(tirx.SeqStmt([*declared, *statements]))
