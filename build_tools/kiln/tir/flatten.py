"""FlattenBuffer for the kernels of Kiln's own families, without simplification of the indices.

TVM 0.27's pass simplifies each index separately, after substituting the values of bound variables. In a
kernel with dynamic shapes these values are quotients inside quotients, and the pass takes up to half a minute
for one batch matmul of attention; for a depthwise convolution of a few hundred unrolled loads it takes 17
seconds. StmtSimplify, which runs later on whole statements, leads from unsimplified indices to the same
machine code in a hundredth of the time.
"""

from __future__ import annotations

import math
import re
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import TensorLoad

from kiln.callbacks import structural_map
from kiln.tir.symbols import int64


def flatten(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod` with every buffer of its functions rewritten to one axis; all shapes must be constants.

    Like TVM's FlattenBuffer, it keeps the parameters, declares a flat buffer for each parameter at the start
    of the body, and stores bools as int8.
    """
    functions = {variable: _flat(func) for variable, func in mod.functions_items()}
    return tvm.IRModule(functions, attrs=mod.attrs)


def _stored(dtype: Any) -> str:
    """Data type in which a value of `dtype` is stored: int8 with the same lanes for bool, else `dtype`."""
    return re.sub(r"^bool", "int8", str(dtype))


def _flat(func: tirx.PrimFunc) -> tirx.PrimFunc:
    flat_buffers: dict[Any, Any] = {}  # by original buffer

    def flat(buffer: Any) -> Any:
        if buffer not in flat_buffers:
            size = math.prod(int(extent) for extent in buffer.shape)
            flat_buffers[buffer] = tirx.decl_buffer([int64(size)], _stored(buffer.dtype), buffer.name)
        return flat_buffers[buffer]

    def flat_indices(buffer: Any, indices: Any) -> list[Any]:
        if len(buffer.shape) == 1:
            return list(indices)
        position: Any = int64(0)
        for index, extent in zip(indices, buffer.shape, strict=True):
            position = position * int64(int(extent)) + index
        return [position]

    def on_load(load: Any) -> Any:
        stored = tirx.BufferLoad(flat(load.source), flat_indices(load.source, load.indices))
        dtype = str(load.ty.dtype)
        return tirx.Cast(dtype, stored) if _stored(dtype) != dtype else stored

    def on_store(store: Any) -> Any:
        dtype = str(store.value.ty.dtype)
        value = tirx.Cast(_stored(dtype), store.value) if _stored(dtype) != dtype else store.value
        return tirx.BufferStore(flat(store.buffer), value, flat_indices(store.buffer, store.indices))

    def on_allocation(statement: Any) -> Any:
        return tirx.AllocBuffer(flat(statement.buffer))

    rules = ((TensorLoad, on_load), (tirx.BufferStore, on_store), (tirx.AllocBuffer, on_allocation))
    body = structural_map(func.body, rules)
    params = [param for param in func.params if tirx.is_buffer_var(param)]
    declared = [tirx.DeclBuffer(flat(param), data=tirx.buffer_data(param)) for param in params]
    statements = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    return func.with_body(tirx.SeqStmt([*declared, *statements]))
