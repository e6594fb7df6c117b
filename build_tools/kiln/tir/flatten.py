"""FlattenBuffer for the kernels of Kiln's own families, without simplification of the indices.

TVM 0.27's pass simplifies each index separately, after substituting the values of bound variables. In a
kernel with dynamic shapes these values are quotients inside quotients, and the pass takes up to half a minute
for one batch matmul of attention; for a depthwise convolution of a few hundred unrolled loads it takes 17
seconds. StmtSimplify, which runs later on whole statements, leads from unsimplified indices to the same
machine code in a hundredth of the time.
"""

from __future__ import annotations

import functools
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


@functools.cache
def _stored(dtype: str) -> str:
    """Data type in which a value of `dtype` is stored: int8 with the same lanes for bool, else `dtype`."""
    return re.sub(r"^bool", "int8", dtype)


def _flat(func: tirx.PrimFunc) -> tirx.PrimFunc:
    # By original buffer: the flat one, and the extents of the original. Kernels have thousands of accesses.
    flat_buffers: dict[Any, tuple[Any, list[Any]]] = {}

    def flat_and_extents(buffer: tirx.Buffer) -> tuple[Any, list[Any]]:
        if buffer not in flat_buffers:
            extents = [int(extent) for extent in buffer.shape]
            size = int64(math.prod(extents))
            flat_buffer = tirx.decl_buffer([size], _stored(str(buffer.dtype)), buffer.name)
            flat_buffers[buffer] = flat_buffer, [int64(extent) for extent in extents]
        return flat_buffers[buffer]

    def flat(buffer: tirx.Buffer) -> Any:
        return flat_and_extents(buffer)[0]

    def flat_indices(extents: list[Any], indices: Any) -> list[Any]:
        if len(extents) == 1:
            return list(indices)
        position: Any = int64(0)
        for index, extent in zip(indices, extents, strict=True):
            position = position * extent + index
        return [position]

    def on_load(load: TensorLoad) -> Any:
        buffer, extents = flat_and_extents(load.source)
        stored = tirx.BufferLoad(buffer, flat_indices(extents, load.indices))
        dtype = str(load.ty.dtype)
        return tirx.Cast(dtype, stored) if _stored(dtype) != dtype else stored

    def on_store(store: Any) -> Any:
        buffer, extents = flat_and_extents(store.buffer)
        dtype = str(store.value.ty.dtype)
        value = tirx.Cast(_stored(dtype), store.value) if _stored(dtype) != dtype else store.value
        return tirx.BufferStore(buffer, value, flat_indices(extents, store.indices))

    def on_allocation(statement: tirx.Stmt) -> Any:
        return tirx.AllocBuffer(flat(statement.buffer))

    rules = ((TensorLoad, on_load), (tirx.BufferStore, on_store), (tirx.AllocBuffer, on_allocation))
    body = structural_map(func.body, rules)
    params = [param for param in func.params if tirx.is_buffer_var(param)]
    declared = [tirx.DeclBuffer(flat(param), data=tirx.buffer_data(param)) for param in params]
    statements = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    return func.with_body(tirx.SeqStmt([*declared, *statements]))
