"""Plain loop nests around a block that stores one element, built from TVM's nodes, for passes to insert."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm
from tvm import s_tir, tirx

from kiln.tir.fused import Nest
from kiln.tir.inline import loads


def buffer_like(like: Any, dtype: str, name: str | None = None) -> Any:
    """A new buffer with the shape of `like`; `name` defaults to the name of `like`."""
    return tirx.decl_buffer(list(like.shape), dtype, name or like.name)


def copy(source: Any, target: Any, convert: Callable[[Any], Any] | None = None) -> Any:
    """A nest that stores `source` into `target`, each element cast to the type of `target` or converted."""
    axes = _axes_of(source)
    value = tirx.BufferLoad(source, [axis.var for axis in axes])
    value = tirx.Cast(str(target.dtype), value) if convert is None else convert(value)
    return around(axes, [], target, [axis.var for axis in axes], value, None)


def computed(target: Any, value: Callable[[list[Any]], Any]) -> Any:
    """The nest that stores in every element of `target` what `value` returns for its indices."""
    axes = _axes_of(target)
    variables = [axis.var for axis in axes]
    return Nest(target, axes, [], variables, value(variables), None)


def function(func: tirx.PrimFunc, nests: Sequence[Nest], params: Mapping[Any, Any]) -> tirx.PrimFunc:
    """A function of `nests` with the parameters and attributes of `func`; `params`: replaced ones."""
    arguments = [params.get(param, param) for param in func.params]
    inner = [nest.buffer for nest in nests if not any(nest.buffer.same_as(param) for param in arguments)]
    loops = [
        around(
            nest.axes, nest.reduced, nest.buffer, nest.store, nest.value,
            None if nest.init is None else tirx.BufferStore(nest.buffer, nest.init, nest.store),
        )
        for nest in nests
    ]  # fmt: skip
    body = tirx.SeqStmt(loops) if len(loops) > 1 else loops[0]
    root = s_tir.SBlock([], [], [], "root", body, None, inner)
    return tirx.PrimFunc(arguments, s_tir.SBlockRealize([], True, root), None, attrs=func.attrs)


def fill(target: Any, value: Any) -> Any:
    """A nest that stores `value` in every element of `target`."""
    axes = _axes_of(target)
    return around(axes, [], target, [axis.var for axis in axes], value, None)


def _axes_of(tensor: Any) -> list[Any]:
    return [
        tirx.IterVar(tvm.ir.Range(_zero(extent), extent), tirx.Var(f"c{number}", str(extent.ty.dtype)), 0)
        for number, extent in enumerate(tensor.shape)
    ]


def around(
    axes: Sequence[Any], reduced: Sequence[Any], target: Any, store: Sequence[Any], value: Any, init: Any
) -> Any:
    """Loops over `axes` and `reduced` around target[store] = value, with `init` as the first value of a sum.

    With `init`, the block does not list `target` among its reads, as TVM requires of a block that initialises
    its sums.
    """
    read = [load for load in loads(value) if init is None or not load.source.same_as(target)]
    reads = [_element(load.source, load.indices) for load in read]
    block = s_tir.SBlock(
        [*axes, *reduced], reads, [_element(target, store)], target.name,
        tirx.BufferStore(target, value, list(store)), init,
    )  # fmt: skip
    every = [*axes, *reduced]
    loops = [tirx.Var(f"i{number}", str(axis.var.ty.dtype)) for number, axis in enumerate(every)]
    body: Any = s_tir.SBlockRealize(loops, True, block)
    for variable, axis in reversed(list(zip(loops, every, strict=True))):
        body = tirx.For(variable, _zero(axis.dom.extent), axis.dom.extent, tirx.ForKind.SERIAL, body)
    return body


def _zero(like: Any) -> Any:
    return tirx.const(0, str(like.ty.dtype))


def _element(buffer: tirx.Buffer, indices: Sequence[Any]) -> Any:
    region = [tvm.ir.Range.from_min_extent(index, tirx.const(1, str(index.ty.dtype))) for index in indices]
    return tirx.BufferRegion(buffer, region)
