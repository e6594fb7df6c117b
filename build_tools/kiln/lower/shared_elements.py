"""Loops of elements for GPUs that compute each value of an element once, however often it is read.

TVM's schedules inline a nest at every use; a chain of nests that are read twice each makes the code
exponential. Such a function becomes a loop over its elements, in which each value is computed once: a thread
computes an element. Kernels for CPUs need no such form, see tir/inline.py.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as script

from kiln.extents import extent
from kiln.tir.builder import bind, load, registers, store, unravel
from kiln.tir.fused import Fused, Nest, NotSimple, replace
from kiln.tir.inline import loads, weights
from kiln.tir.symbols import int64

_MANY = 3  # greatest ratio of the values in the inlined element to the nests


def shared_elements(mod: tvm.IRModule) -> tvm.IRModule:
    """Replace functions whose inlined elements would be long; runs before AnnotateTIROpPattern.

    AnnotateTIROpPattern marks the loops as opaque, so that nothing is fused with them.
    """
    for variable, func in list(mod.functions_items()):
        if isinstance(func, tirx.PrimFunc):
            mod.update_func(variable, _with_values_once(func))
    return mod


def _with_values_once(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` as a loop that computes each value of an element once.

    `func` itself if it has several results, sums or few values, or reads other elements.
    """
    try:
        fused = Fused(func)
        *_, last = fused.nests
        inlined = weights(fused.nests, frozenset())[last.buffer]
    except (NotSimple, AttributeError):
        return func
    alone = len(fused.outputs) == 1 and all(isinstance(size, int) for size in last.extents)
    if (
        inlined < _MANY * len(fused.nests)
        or not alone
        or not all(_in_place(nest, fused) for nest in fused.nests)
    ):
        return func
    code = s_tir.SBlock([], [], [], last.buffer.name, _loop(fused.nests))
    root = s_tir.SBlock([], [], [], "root", s_tir.SBlockRealize([], True, code))
    return func.with_body(s_tir.SBlockRealize([], True, root))


def _in_place(nest: Nest, fused: Fused) -> bool:
    """Whether a nest reads other nests at its own element alone, and computes no sum."""
    reads = [list(load.indices) for load in loads(nest.value) if load.source in fused.by_buffer]
    same_elements = all(
        len(indices) == len(nest.axes) and all(map(_is_along, indices, nest.axes))
        for indices in (*reads, list(nest.store))
    )
    return not nest.reduced and nest.extents == fused.nests[-1].extents and same_elements


def _is_along(index: Any, axis: Any) -> bool:
    """Whether `index` is the variable of `axis`, or 0 where the axis has one element."""
    zero = isinstance(index, tirx.IntImm) and int(index) == 0 and extent(axis.dom.extent) == 1
    return zero or bool(index.same_as(axis.var))


def _loop(nests: list[Nest]) -> Any:
    """The loop over all elements of the last nest; the nests become values, computed one after the other."""
    sizes = nests[-1].extents
    with IRBuilder() as ir, script.parallel(int64(0), int64(math.prod(sizes))) as number:
        indices = [bind(index) for index in unravel(number, sizes)]
        values: dict[Any, Any] = {}
        for nest in nests:
            bound = {axis.var: index for axis, index in zip(nest.axes, indices, strict=True)}
            value = replace(nest.value, bound, values)
            if nest is nests[-1]:
                store(nest.buffer, indices, value)
            else:
                values[nest.buffer] = _held(value)
    return ir.get()


def _held(value: Any) -> Any:
    """The function of an element that returns `value`, computed once.

    It is stored, since TVM's StmtSimplify puts the values of variables in their place, which would be
    exponential again.
    """
    register = registers([1], str(value.ty.dtype), scope="local")
    store(register, [int64(0)], value)
    return lambda _: load(register, [int64(0)])
