"""Loops of elements for GPUs that compute each value of an element once, however often it is read.

TVM's schedules inline a nest at every use; a chain of nests that are read twice each makes the code
exponential. Such a function becomes a loop over its elements, in which each value is computed once: a thread
computes an element. Kernels for CPUs need no such form, see tir/inline.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as script

from kiln.extents import extent
from kiln.tir.builder import bind, load, registers, store, unravel
from kiln.tir.fused import Fused, Nest, NotSimple, replace
from kiln.tir.inline import loads, weights
from kiln.tir.symbols import int64

_Places = dict[Any, list[Any]]
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

    `func` itself if it has several results, sums or few values, or needs several elements of a tensor.
    """
    try:
        fused = Fused(func)
        *_, last = fused.nests
        inlined = weights(fused.nests, frozenset())[last.buffer]
    except (NotSimple, AttributeError):
        return func
    alone = len(fused.outputs) == 1 and all(isinstance(size, int) for size in last.extents)
    places = _places(fused) if alone and inlined >= _MANY * len(fused.nests) else None
    if places is None:
        return func
    code = s_tir.SBlock([], [], [], last.buffer.name, _loop(fused.nests, places))
    root = s_tir.SBlock([], [], [], "root", s_tir.SBlockRealize([], True, code))
    return func.with_body(s_tir.SBlockRealize([], True, root))


def _places(fused: Fused) -> _Places | None:
    """The element of each nest that an element of the last nest needs, by buffer.

    Its indices are variables of the last nest's axes, or 0 along axes of one element, which broadcasting
    repeats. None if a nest computes a sum, or an element needs several elements of a nest.
    """
    last = fused.nests[-1]
    places: _Places = {last.buffer: [axis.var for axis in last.axes]}
    for nest in reversed(fused.nests):
        own = places.get(nest.buffer)
        if own is None or nest.reduced or not _is_in_order(nest):
            return None
        bound = {axis.var: index for axis, index in zip(nest.axes, own, strict=True)}
        for read in loads(nest.value):
            made = fused.by_buffer.get(read.source)
            if made is None:
                continue
            indices = _indices(read.indices, made, bound, last)
            if indices is None or not all(
                map(tvm_ffi.structural_equal, places.setdefault(made.buffer, indices), indices)
            ):
                return None
    return places


def _is_in_order(nest: Nest) -> bool:
    """Whether a nest stores along its axes; that of a scalar has one axis, of one element, and no index."""
    if not nest.store:
        return nest.extents == [1]
    return len(nest.store) == len(nest.axes) and all(map(_is_along, nest.store, nest.axes))


def _indices(given: Sequence[Any], made: Nest, bound: Mapping[Any, Any], last: Nest) -> list[Any] | None:
    """The indices of a read of `made` in variables of the last nest; None if they are others.

    `bound`: the indices of the reading nest by the variables of its axes.
    """
    sizes = {axis.var: size for axis, size in zip(last.axes, last.extents, strict=True)}
    indices: list[Any] = []
    for index, size in zip(given or [int64(0)], made.extents, strict=True):  # a scalar has no index
        if size == 1:
            indices.append(int64(0))
            continue
        place = bound.get(index) if isinstance(index, tirx.Var) else None
        if not isinstance(place, tirx.Var) or sizes[place] != size:
            return None
        indices.append(place)
    return indices


def _is_along(index: Any, axis: Any) -> bool:
    """Whether `index` is the variable of `axis`, or 0 where the axis has one element."""
    zero = isinstance(index, tirx.IntImm) and int(index) == 0 and extent(axis.dom.extent) == 1
    return zero or bool(index.same_as(axis.var))


def _loop(nests: list[Nest], places: _Places) -> Any:
    """The loop over all elements of the last nest; the nests become values, computed one after the other."""
    sizes = nests[-1].extents
    with IRBuilder() as ir, script.parallel(int64(0), int64(math.prod(sizes))) as number:
        indices = [bind(index) for index in unravel(number, sizes)]
        values: dict[Any, Any] = {}
        index_of = {axis.var: index for axis, index in zip(nests[-1].axes, indices, strict=True)}
        for nest in nests:
            element = [index_of.get(index, index) for index in places[nest.buffer]]
            bound = {axis.var: index for axis, index in zip(nest.axes, element, strict=True)}
            value = replace(nest.value, bound, values)
            if nest is nests[-1]:
                store(nest.buffer, indices if nest.store else [], value)
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
