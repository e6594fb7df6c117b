"""FlattenBuffer for the kernels of Kiln's own families, with every index left as it stands.

TVM 0.27's pass simplifies each index for itself, with the values of bound variables written out. In a kernel
with dynamic shapes the values are quotients inside quotients, and one batch matmul of attention takes up to
half a minute; in a depthwise convolution of a few hundred unrolled loads the pass takes 17 seconds.
StmtSimplify, which runs later on statements as a whole, makes the same machine code of the indices as they
stand in a hundredth of the time.
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
