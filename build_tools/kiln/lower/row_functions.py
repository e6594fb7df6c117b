"""Functions of the front ends, such as sums and gates of integers, on some of the rows of an image.

A front end writes what no operator of Relax computes as a function for tensors of given sizes (`call_tir`).
Such a function works row by row if each element of its result is computed from elements of the same row, and
of tensors that have no rows. It is then written again for another number of rows.

Applies to functions of loop nests without reductions that have one result, NHWC.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm_ffi
from tvm import relax, te, tirx

from kiln.graph.bindings import operator
from kiln.tir.fused import Fused, Nest, NotSimple, replace
from kiln.tir.inline import loads
from kiln.tir.symbols import is_dynamic, variables

Functions = Mapping[Any, Any]  # those of a module, by GlobalVar
NO_FUNCTIONS: Functions = {}


def operands_with_rows(call: Any, functions: Functions, axis: int) -> tuple[Any, ...] | None:
    """The tensors of which a call of a function reads the rows that it computes; None for other calls.

    axis: that of the rows.
    """
    if operator(call) != "relax.call_tir" or len(call.args) != 2:
        return None
    function = functions.get(call.args[0])
    if not isinstance(function, tirx.PrimFunc) or not isinstance(call.ty, relax.TensorType):
        return None
    try:
        fused = Fused(function)
    except NotSimple:
        return None
    args = list(call.args[1].fields)
    if len(fused.params) != len(args) + 1 or fused.outputs != fused.params[-1:]:
        return None
    size = _rows(fused.params[-1], axis)
    if size is None or size == 1:
        return None
    with_rows = {buffer for buffer in (*fused.params, *fused.by_buffer) if _rows(buffer, axis) == size}
    if not all(_is_row_by_row(nest, with_rows, axis) for nest in fused.nests):
        return None
    operands = [arg for arg, param in zip(args, fused.params, strict=False) if param in with_rows]
    if not operands or not all(isinstance(arg, relax.Var) for arg in operands):
        return None
    return tuple(operands)


def _rows(buffer: Any, axis: int) -> int | None:
    """The size of an axis of a tensor of four; None for others."""
    shape = list(buffer.shape)
    return int(shape[axis]) if len(shape) == 4 and not any(map(is_dynamic, shape)) else None


def _without_loads(expr: Any, read: list[Any]) -> Any:
    """`expr` with 0 in place of elements of tensors."""

    def zero(source: Any) -> Any:
        return lambda _: tirx.const(0, str(source.dtype))

    return replace(expr, {}, {load.source: zero(load.source) for load in read})


def _is_row_by_row(nest: Nest, with_rows: set[Any], axis: int) -> bool:
    """Whether a nest reads the row that it writes of tensors with rows, and uses its row for nothing else."""
    stored = len(nest.store) == len(nest.axes) and all(
        tvm_ffi.structural_equal(index, own.var) for index, own in zip(nest.store, nest.axes, strict=True)
    )
    if nest.reduced or not stored:
        return False
    read = loads(nest.value)
    if nest.buffer not in with_rows:
        return not any(load.source in with_rows for load in read)
    row = nest.axes[axis].var
    if row in variables(_without_loads(nest.value, read)):
        return False
    for load in read:
        positions = list(load.indices)
        if load.source in with_rows and not tvm_ffi.structural_equal(positions.pop(axis), row):
            return False
        if any(row in variables(_without_loads(index, loads(index))) for index in positions):
            return False
    return True


def with_rows(function: Any, axis: int, rows: int) -> Any:
    """A function of which `operands_with_rows` is not None, for images with `rows` rows."""
    fused = Fused(function)
    size = _rows(fused.params[-1], axis)
    tensors: dict[Any, Any] = {}

    def shape_of(buffer: Any) -> list[Any]:
        sizes = [tirx.IntImm("int64", int(extent)) for extent in buffer.shape]
        if _rows(buffer, axis) == size:
            sizes[axis] = tirx.IntImm("int64", rows)
        return sizes

    def computed(nest: Nest) -> Any:
        read = {
            source: (lambda indices, tensor=tensor: tensor(*indices)) for source, tensor in tensors.items()
        }

        def element(*at: Any) -> Any:
            where = {own.var: index for own, index in zip(nest.axes, at, strict=True)}
            return replace(nest.value, where, read)

        return te.compute(shape_of(nest.buffer), element, name=str(nest.buffer.name))

    for buffer in fused.params[:-1]:
        tensors[buffer] = te.placeholder(shape_of(buffer), str(buffer.dtype), str(buffer.name))
    for nest in fused.nests:
        tensors[nest.buffer] = computed(nest)
    made = te.create_prim_func([tensors[buffer] for buffer in fused.params], index_dtype_override="int64")
    made = made.without_attr("global_symbol")  # "main"; the module gives it another one
    kept = {name: value for name, value in (function.attrs or {}).items() if name != "global_symbol"}
    return made.with_attrs(kept) if kept else made
