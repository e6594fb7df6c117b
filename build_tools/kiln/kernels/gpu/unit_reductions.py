"""Reductions over a single element as plain assignments, before a function is scheduled.

A matmul of depth 1 and a sum along an axis of size 1 are reductions with one iteration. TVM 0.27 drops that
loop when it normalises a function, and then inlines what follows into a block that still has an initial
value: `z + sum` becomes the assignment `y = z + 0` and the update `y = z + (y + x)`, which adds z twice.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import TensorLoad

from kiln.callbacks import structural_map
from kiln.tir.symbols import is_dynamic


def without_unit_reductions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with an assignment in place of each reduction of one buffer whose axes all have one element."""
    return func.with_body(structural_map(func.body, [(s_tir.SBlockRealize, _assigned)]))


def _assigned(realize: Any) -> Any:
    block = realize.block
    reduced = [axis for axis in block.iter_vars if int(axis.iter_type) == tirx.IterVar.CommReduce]
    init, update = block.init, block.body
    if not reduced or any(is_dynamic(a.dom.extent) or int(a.dom.extent) != 1 for a in reduced):
        return realize
    if not isinstance(init, tirx.BufferStore) or not isinstance(update, tirx.BufferStore):
        return realize
    if not init.buffer.same_as(update.buffer) or not _same(init.indices, update.indices):
        return realize

    def on_load(load: TensorLoad) -> Any:
        own_element = load.source.same_as(update.buffer) and _same(load.indices, update.indices)
        return init.value if own_element else load

    value = structural_map(update.value, [(TensorLoad, on_load)])
    axes = [
        tirx.IterVar(axis.dom, axis.var, tirx.IterVar.DataPar, axis.thread_tag)
        if any(axis.same_as(one) for one in reduced)
        else axis
        for axis in block.iter_vars
    ]
    assignment = s_tir.SBlock(
        axes, block.reads, block.writes, block.name_hint,
        tirx.BufferStore(update.buffer, value, update.indices), None, block.alloc_buffers,
        block.match_buffers, block.annotations,
    )  # fmt: skip
    return s_tir.SBlockRealize(realize.iter_values, realize.predicate, assignment)


def _same(a: Any, b: Any) -> bool:
    return bool(tvm_ffi.structural_equal(a, b))
