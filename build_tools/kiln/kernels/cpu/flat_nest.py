"""Nests whose tensors are all read and written at one index, as one loop over their elements.

Of nested loops LLVM unrolls the inner one, and then the outer one if it is short: the code of a loop over
5 x 128 elements is five times that of a loop over 640. And vectors along a short last axis leave a rest in
each row. Where kernels are shared by threads the outer axes stay, as tasks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace as replace_fields
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from kiln.tir.builder import unravel
from kiln.tir.fused import Nest, replace
from kiln.tir.symbols import is_dynamic, variables


def flattened(nest: Nest, reads: Sequence[Any]) -> Nest:
    """`nest` as a loop along one axis where every tensor is read at the element that is written.

    `reads`: all loads of the nest's expression; those of scalars and of constant elements are allowed. The
    nest itself is returned where it is a reduction, has dynamic sizes, or has at most one axis longer than 1.
    """
    extents = nest.extents
    if nest.reduced or any(map(is_dynamic, extents)) or sum(size != 1 for size in extents) < 2:
        return nest
    # A tensor that is stored inside a larger one, such as a padded one, has gaps between its rows.
    dense = _sizes(nest.buffer) == list(extents) and all(
        tvm_ffi.structural_equal(index, axis.var) for index, axis in zip(nest.store, nest.axes, strict=True)
    )
    if not dense or any(not _here(read, nest) for read in reads):
        return nest
    dtype = str(nest.axes[0].var.ty.dtype)
    count = tvm.ir.Range(tirx.const(0, dtype), tirx.const(math.prod(extents), dtype))
    axis = tirx.IterVar(count, tirx.Var("flat", dtype), tirx.IterVar.DataPar)
    if _reads_positions(nest, reads):
        indices = unravel(axis.var, extents)
    else:
        # Positions that vectors divide by sizes such as 14 would be gathered. Elements of all rows follow the
        # first one of the last axis.
        indices = [*(tirx.const(0, dtype) for _ in extents[1:]), axis.var]
    where = {old.var: index for old, index in zip(nest.axes, indices, strict=True)}
    store = [replace(index, where, {}) for index in nest.store]
    return replace_fields(nest, axes=[axis], store=store, value=replace(nest.value, where, {}))


def _reads_positions(nest: Nest, reads: Sequence[Any]) -> bool:
    """Whether the value of an element depends on its position by itself, not as the index of a load alone."""

    def without(buffer: tirx.Buffer) -> Callable[[Any], Any]:
        return lambda _: tirx.const(0, str(buffer.dtype))

    value = replace(nest.value, {}, {read.source: without(read.source) for read in reads})
    return any(axis.var in variables(value) for axis in nest.axes)


def _here(read: Any, nest: Nest) -> bool:
    """Whether `read` loads a constant element, or the element at the index that `nest` writes.

    In the second case the tensor must have the shape of the nest.
    """
    if not any(variables(index) for index in read.indices):
        return True
    return _sizes(read.source) == list(nest.extents) and all(
        tvm_ffi.structural_equal(a, b) for a, b in zip(read.indices, nest.store, strict=True)
    )


def _sizes(tensor: Any) -> list[int | None]:
    """The sizes of a tensor's axes; None for a dynamic one."""
    return [None if is_dynamic(size) else int(size) for size in tensor.shape]
