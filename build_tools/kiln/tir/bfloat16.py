"""bfloat16 on CPUs, for which LLVM ends the process: computed in float32, and stored as the bits in uint16.

Kiln's importers compute in float32 what a model's file has in bfloat16; a user's own operator may have
tensors and numbers of the type.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad

from kiln.callbacks import structural_walk


def in_float32(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with functions that compute in float32 what they computed in bfloat16."""
    if not any(_has_bfloat16(function) for _, function in mod.functions_items()):
        return mod
    return tirx.transform.BF16ComputeLegalize()(mod)


def stored_as_bits(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """A function after `in_float32` whose buffers of bfloat16 are buffers of uint16."""
    if not _has_bfloat16(function):
        return function
    mod = tirx.transform.BF16StorageLegalize()(tvm.IRModule({"function": function}))
    return mod["function"]


def _has_bfloat16(function: Any) -> bool:
    """Whether a function in TIR reads, writes or computes a number of bfloat16."""
    if not isinstance(function, tirx.PrimFunc):
        return False

    def visit(node: Any) -> Any:
        expr = node.value if isinstance(node, tirx.BufferStore) else node
        return tvm_ffi.VisitInterrupt() if "bfloat16" in str(expr.ty) else None

    kinds = (TensorLoad, tirx.BufferStore, tirx.Cast)
    return structural_walk(function.body, ((kinds, visit),)) is not None
