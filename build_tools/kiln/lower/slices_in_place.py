"""Slices of tensors on GPUs are read where they are: a kernel that reads a slice reads the whole tensor.

Runs after fusion, where a slice along one axis is a function of its own: attention's q, k and v are slices of
one product (byoc/triton/merge.py). Its readers get the tensor that it is a slice of, and add the beginning of
the slice to their index. A slice of the last axis that is reshaped into heads is a slice of heads of the
tensor, reshaped in the same way. What nothing reads any more is removed.

A slice is left as it is where a reader is not made of plain loop nests, and where rows of the slice would not
begin at a multiple of ALIGNED elements: kernels copy 16 bytes at once where the sizes of a row allow it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import relax, sym, tirx
from tvm.ir import TensorLoad

from kiln.callbacks import structural_map
from kiln.extents import shape_of
from kiln.graph.bindings import CallRewriter, operator, rewrite_calls
from kiln.opinfo import attach
from kiln.opinfo.kinds import nests_of
from kiln.tir import loop_nest
from kiln.tir.symbols import is_dynamic

ALIGNED = 16  # elements of 8 bits in a copy of 16 bytes


@dataclass(frozen=True)
class PartInPlace:
    """Elements of a tensor from `begin` on, along `axis`, which has `extent` elements there."""

    axis: int
    begin: int
    extent: int


def slices_in_place(mod: tvm.IRModule) -> tvm.IRModule:
    """Let functions that read a slice read the tensor that it is a slice of, at other indices."""
    rewritten: dict[Any, Any] = {}

    def rule(rewriter: CallRewriter, call: relax.Call) -> Any:
        func = mod[call.args[0]] if isinstance(call.args[0], tvm.ir.GlobalVar) else None
        if not isinstance(func, tirx.PrimFunc) or slice_of(func) is not None:
            return None
        items = list(call.args[1].fields)
        slices = {
            at: slice_part for at, item in enumerate(items) if (slice_part := _part(mod, rewriter, item))
        }
        if not slices or nests_of(func) is None:
            return None
        key = call.args[0], tuple((at, slice_part) for at, (_, slice_part) in slices.items())
        if key not in rewritten:
            new = reading(func, {at: slice_part for at, (_, slice_part) in slices.items()})
            rewritten[key] = rewriter.builder_.add_func(new, call.args[0].name_hint)
        for at, (tensor, _) in slices.items():
            items[at] = rewriter.emit(tensor) if not isinstance(tensor, relax.Var) else tensor
        return relax.call_tir(rewritten[key], items, call.ty, *call.args[2:])

    if not any(isinstance(func, tirx.PrimFunc) and slice_of(func) for func in mod.functions.values()):
        return mod
    return relax.transform.DeadCodeElimination()(rewrite_calls(mod, {"relax.call_tir": rule}))


def slice_of(func: tirx.PrimFunc) -> PartInPlace | None:
    """The slice that a function copies; None for other functions, and for a copy of a whole tensor."""
    nests, tensors = nests_of(func), attach.tensors(func)
    if nests is None or len(nests) != 1 or len(tensors) != 2 or nests[0].reduced:
        return None
    (nest,) = nests
    axes = [axis.var for axis in nest.axes]
    plain = len(nest.store) == len(axes) and all(map(_same, nest.store, axes))
    if not plain or not isinstance(nest.value, TensorLoad) or len(nest.value.indices) != len(axes):
        return None
    simpler = sym.Analyzer()
    begins = [simpler.simplify(i - axis) for i, axis in zip(nest.value.indices, axes, strict=True)]
    if not all(isinstance(begin, tirx.IntImm) for begin in begins):
        return None
    source, result = nest.value.source.shape, nest.buffer.shape
    cut = [
        axis
        for axis, begin in enumerate(begins)
        if int(begin) != 0 or not simpler.can_prove_equal(source[axis], result[axis])
    ]
    if len(cut) != 1 or is_dynamic(source[cut[0]]):
        return None
    return PartInPlace(cut[0], int(begins[cut[0]]), int(source[cut[0]]))


def _same(index: Any, variable: relax.Var) -> bool:
    return bool(index.same_as(variable))


def _part(mod: tvm.IRModule, rewriter: CallRewriter, item: Any) -> tuple[Any, PartInPlace] | None:
    """The tensor that the operand `item` is a slice of, and the slice, if it can be read in place."""
    value = rewriter.definition(item)
    reshaped = operator(value) == "relax.reshape"
    call = rewriter.definition(value.args[0]) if reshaped else value
    if operator(call) != "relax.call_tir" or not isinstance(call.args[0], tvm.ir.GlobalVar):
        return None
    func = mod[call.args[0]] if call.args[0] in mod.functions else None
    part = slice_of(func) if isinstance(func, tirx.PrimFunc) else None
    if part is None:
        return None
    tensor = call.args[1].fields[0]
    columns = shape_of(call)[-1]
    is_last = part.axis == len(call.ty.shape) - 1
    if not reshaped:
        sizes = (part.begin, part.extent, columns) if is_last else ()
        return (tensor, part) if all(_divides(ALIGNED, size) for size in sizes) else None
    *rows, heads, width = (1, *shape_of(value))
    if not (is_last and _is_known(heads, width, columns) and heads * width == columns):
        return None
    if not _divides(width, part.begin) or not _divides(width, part.extent):
        return None
    begin, heads = part.begin // width, part.extent // width
    whole = relax.op.reshape(tensor, [*rows[1:], heads, width])
    return whole, PartInPlace(len(rows) - 1, begin, heads)


def _is_known(*sizes: Any) -> bool:
    return all(isinstance(size, int) for size in sizes)


def _divides(width: Any, size: Any) -> bool:
    return _is_known(width, size) and size % width == 0


def reading(func: tirx.PrimFunc, parts: dict[int, PartInPlace]) -> tirx.PrimFunc:
    """`func` that reads whole tensors in place of slices. `parts`: by position of the parameter."""
    nests, params = nests_of(func), list(func.params)
    assert nests is not None
    parents: dict[Any, tuple[Any, PartInPlace]] = {}
    for at, part in parts.items():
        old = params[at]
        shape = list(old.shape)
        shape[part.axis] = tirx.const(part.extent, str(shape[part.axis].ty.dtype))
        params[at] = tirx.decl_buffer(shape, str(old.dtype), old.name)
        parents[old] = params[at], part

    def on_load(load: TensorLoad) -> Any:
        if load.source not in parents:
            return load
        buffer, part = parents[load.source]
        indices = list(load.indices)
        indices[part.axis] = indices[part.axis] + part.begin
        return tirx.BufferLoad(buffer, indices)

    changed = [replace(nest, value=structural_map(nest.value, [(TensorLoad, on_load)])) for nest in nests]
    return loop_nest.function(func, changed, {old: new for old, (new, _) in parents.items()})
