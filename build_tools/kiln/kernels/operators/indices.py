"""Gather and scatter: operators with indices in the data, which never access memory outside of the tensor.

A gather clamps each index to its axis, so that an index beyond the end reads the last element. A scatter
drops an update whose index is out of range. Negative indices have already been converted to indices from the
start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as script

from kiln.tir.symbols import int64

COMBINE = {"add": lambda a, b: a + b, "mul": lambda a, b: a * b, "min": te.min, "max": te.max}


def gather_elements(builder: Any, call: tvm.ir.Call) -> Any:
    """Legalisation rule for relax.gather_elements: data[…, indices[…], …], indices as large as the result."""
    axis = int(call.attrs.axis) % len(call.args[0].ty.shape)

    def compute(data: Any, places: Any) -> Any:
        def element(*at: Any) -> Any:
            return data(*at[:axis], _clamped(places, at, data.shape[axis]), *at[axis + 1 :])

        return te.compute(places.shape, element, name="gather_elements")

    return builder.call_te(compute, *call.args, primfunc_name_hint="gather_elements")


def gather_nd(builder: Any, call: tvm.ir.Call) -> Any:
    """Legalisation rule for relax.gather_nd: a row of indices indexes the axes after `batch_dims`."""
    batch = int(call.attrs.batch_dims)

    def compute(data: Any, places: Any) -> Any:
        *rows, count = list(places.shape)
        named = int(count)

        def element(*at: Any) -> Any:
            row = at[: len(rows)]
            index = [_clamped(places, (*row, int64(k)), data.shape[batch + k]) for k in range(named)]
            return data(*at[:batch], *index, *at[len(rows) :])

        return te.compute([*rows, *data.shape[batch + named :]], element, name="gather_nd")

    return builder.call_te(compute, *call.args, primfunc_name_hint="gather_nd")


def _clamped(places: Any, at: tuple[Any, ...], size: Any) -> Any:
    """The index `places[at]`, clamped to [0, size).

    For a constant size the result keeps the data type of an int32 or int64 index; else it is int64.
    """
    dtype = index_dtype = str(places.dtype)
    if dtype not in ("int32", "int64") or not isinstance(size, (int, tirx.IntImm)):
        dtype = "int64"
    index = places(*at) if index_dtype == dtype else tirx.Cast(dtype, places(*at))
    last = tirx.IntImm(dtype, int(size) - 1) if isinstance(size, (int, tirx.IntImm)) else size - 1
    return te.max(te.min(index, last), tirx.IntImm(dtype, 0))


def scatter_elements(builder: Any, call: tvm.ir.Call) -> Any:
    """Legalisation rule for relax.scatter_elements: updates along the axis are applied in order."""
    axis = int(call.attrs.axis) % len(call.args[0].ty.shape)

    def write(places: Any, new: Any, out: Any, shapes: _Shapes) -> None:
        shape, index_shape = shapes.data, shapes.indices
        before, after = count(index_shape[:axis]), count(index_shape[axis + 1 :])
        stride = count(shape[axis + 1 :])
        with script.parallel(int64(0), before * after) as line:
            first, last = tirx.floordiv(line, after), tirx.floormod(line, after)
            with script.serial(int64(0), index_shape[axis]) as number:
                update = (first * index_shape[axis] + number) * after + last
                index = tirx.Cast("int64", places[update])
                # The other axes of the indices may be shorter than the axes of the data.
                head = _renumbered(first, index_shape[:axis], shape[:axis])
                tail = _renumbered(last, index_shape[axis + 1 :], shape[axis + 1 :])
                target = (head * shape[axis] + index) * stride + tail
                with script.If(tirx.all(index >= int64(0), index < shape[axis])), script.Then():
                    out[target] = _combined(call, out[target], new[update])

    return _scatter(builder, call, write, "scatter_elements")


def scatter_nd(builder: Any, call: Any) -> Any:
    """Legalisation rule for relax.scatter_nd: updates are applied in order; each is a slice of the data."""

    def write(places: Any, new: Any, out: Any, shapes: _Shapes) -> None:
        *rows, axes = shapes.indices
        named, shape = int(axes), shapes.data  # a row of indices indexes the `named` first axes of the data
        slice_size = count(shape[named:])
        with script.serial(int64(0), count(rows)) as update:
            slice_number: Any = int64(0)
            in_range = []
            for axis in range(named):
                index = tirx.Cast("int64", places[update * named + axis])
                slice_number = slice_number * shape[axis] + index
                in_range += [index >= int64(0), index < shape[axis]]
            with script.If(tirx.all(*in_range)), script.Then(), script.serial(int64(0), slice_size) as number:
                target = slice_number * slice_size + number
                out[target] = _combined(call, out[target], new[update * slice_size + number])

    return _scatter(builder, call, write, "scatter_nd")


@dataclass(frozen=True)
class _Shapes:
    """The shapes of the data and of the indices of a scatter."""

    data: list[Any]
    indices: list[Any]


def _scatter(
    builder: Any, call: tvm.ir.Call, write: Callable[[Any, Any, Any, _Shapes], None], name: str
) -> Any:
    """Legalise a scatter: copy the data, then apply the updates with `write`.

    `write(indices, updates, result, shapes)` gets each tensor as a flat buffer.
    """

    def compute(x: Any, places: Any, new: Any) -> Any:
        shapes = _Shapes(list(x.shape), list(places.shape))

        def body(sources: Any, target: Any) -> Any:
            old, indices, updates = (script.buffer_proxy(source) for source in sources)
            out = script.buffer_proxy(target)
            with IRBuilder() as ir:
                with script.seq_scope():
                    with script.parallel(int64(0), count(shapes.data)) as element:
                        out[element] = old[element]
                    write(indices, updates, out, shapes)
                return ir.get()

        result = tirx.decl_buffer(x.shape, x.dtype, name)
        return te.extern(
            [x.shape], [x, places, new], lambda i, o: body(i, o[0]), dtype=x.dtype, out_buffers=[result],
            name=name, tag=name,
        )  # fmt: skip

    return builder.call_te(compute, *call.args, primfunc_name_hint=name)


def _renumbered(number: Any, sizes: list[Any], into: list[Any]) -> Any:
    """Flat position in shape `into` of the element at flat position `number` in shape `sizes`.

    Each of `sizes` is at most the size of the same axis in `into`.
    """
    if all(tvm.sym.Analyzer().can_prove_equal(a, b) for a, b in zip(sizes, into, strict=True)):
        return number
    position: Any = int64(0)
    factor: Any = int64(1)
    for size, into_size in zip(reversed(sizes), reversed(into), strict=True):
        position = position + tirx.floormod(number, size) * factor
        number, factor = tirx.floordiv(number, size), factor * into_size
    return position


def _combined(call: tvm.ir.Call, old: Any, new: Any) -> Any:
    """The new value of an element: `old` combined with the update `new`. ValueError for other reductions."""
    reduction = str(call.attrs.reduction)
    if reduction == "update":
        return new
    if reduction not in COMBINE:
        raise ValueError(f"reduction '{reduction}' is not implemented; {', '.join(COMBINE)} are")
    return COMBINE[reduction](old, new)


def count(sizes: list[Any]) -> Any:
    """The number of elements of a tensor with the shape `sizes`."""
    product: Any = int64(1)
    for size in sizes:
        product = product * size
    return tvm.sym.Analyzer().simplify(product)


RULES = {
    "relax.gather_elements": gather_elements,
    "relax.gather_nd": gather_nd,
    "relax.scatter_elements": scatter_elements,
    "relax.scatter_nd": scatter_nd,
}
