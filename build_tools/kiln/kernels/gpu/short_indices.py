"""Indices of 32 bits in functions with dynamic sizes, where they count all elements."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import tvm
from tvm import s_tir, tirx

from kiln.callbacks import structural_walk
from kiln.tir.symbols import is_dynamic

_MOST = 2**31 - 2**17  # elements; indices go beyond them by less than a block's tile


def with_short_indices(func: tirx.PrimFunc, size: Callable[[Any], int]) -> tirx.PrimFunc:
    """`func` with 32-bit indices if it has dynamic shapes; `size` returns the greatest value of an extent.

    Otherwise dlight and NarrowDataType would mix 32-bit and 64-bit indices, which TVM 0.27 rejects. The pass
    does not support buffers of int64; a function with such a buffer is not changed, nor is one with a tensor
    whose elements 32 bits do not count.
    """
    buffers = [param for param in func.params if tirx.is_buffer_var(param)]
    counts = [prod(size(extent) for extent in buffer.shape) for buffer in _all_buffers(func)]
    is_long = any(str(buffer.dtype) == "int64" for buffer in buffers) or max(counts, default=0) > _MOST
    if is_long or not any(is_dynamic(extent) for buffer in buffers for extent in buffer.shape):
        return func
    return tirx.transform.ForceNarrowIndexToInt32()(tvm.IRModule({"kernel": func}))["kernel"]


def _all_buffers(func: tirx.PrimFunc) -> list[Any]:
    """The tensors of a function: its parameters, and those that its blocks allocate."""
    found = [param for param in func.params if tirx.is_buffer_var(param)]
    structural_walk(func.body, [(s_tir.SBlock, lambda block: found.extend(block.alloc_buffers))])
    return found
