"""Operators that read or write where data says, without touching memory that is not the tensor's.

Reading: an index outside is held within its axis, so that one beyond the end takes the last element. Writing:
an update whose index is outside is dropped. Negative indices have been counted from the end before.
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


def gather_elements(builder: Any, call: Any) -> Any:
    """The rule for relax.gather_elements: data[…, indices[…], …], with indices of the result's shape."""
    axis = int(call.attrs.axis) % len(call.args[0].ty.shape)

    def compute(data: Any, places: Any) -> Any:
        def element(*at: Any) -> Any:
            return data(*at[:axis], _held(places, at, data.shape[axis]), *at[axis + 1 :])

        return te.compute(places.shape, element, name="gather_elements")

    return builder.call_te(compute, *call.args, primfunc_name_hint="gather_elements")


def gather_nd(builder: Any, call: Any) -> Any:
    """The rule for relax.gather_nd: a row of indices names the axes behind the first `batch_dims`."""
    batch = int(call.attrs.batch_dims)

    def compute(data: Any, places: Any) -> Any:
        *rows, count = list(places.shape)
        named = int(count)

        def element(*at: Any) -> Any:
            row = at[: len(rows)]
            where = [_held(places, (*row, int64(k)), data.shape[batch + k]) for k in range(named)]
            return data(*at[:batch], *where, *at[len(rows) :])

        return te.compute([*rows, *data.shape[batch + named :]], element, name="gather_nd")

    return builder.call_te(compute, *call.args, primfunc_name_hint="gather_nd")


def _held(places: Any, at: tuple[Any, ...], size: Any) -> Any:
    """The index `places[at]` within an axis. A constant size keeps the index's type, which may be narrow."""
    dtype = given = str(places.dtype)
    if dtype not in ("int32", "int64") or not isinstance(size, (int, tirx.IntImm)):
        dtype = "int64"
    index = places(*at) if given == dtype else tirx.Cast(dtype, places(*at))
    last = tirx.IntImm(dtype, int(size) - 1) if isinstance(size, (int, tirx.IntImm)) else size - 1
    return te.max(te.min(index, last), tirx.IntImm(dtype, 0))


def scatter_elements(builder: Any, call: Any) -> Any:
    """The rule for relax.scatter_elements: the updates of a line along the axis one after the other."""
    axis = int(call.attrs.axis) % len(call.args[0].ty.shape)

    def write(places: Any, new: Any, out: Any, shapes: _Shapes) -> None:
        shape, given = shapes.data, shapes.indices
        before, after = count(given[:axis]), count(given[axis + 1 :])
        behind = count(shape[axis + 1 :])
        with script.parallel(int64(0), before * after) as line:
            first, last = tirx.floordiv(line, after), tirx.floormod(line, after)
            with script.serial(int64(0), given[axis]) as number:
                at = (first * given[axis] + number) * after + last
                place = tirx.Cast("int64", places[at])
                # Lines before and behind the axis may be fewer in the indices than in the data.
                head = _moved(first, given[:axis], shape[:axis])
                tail = _moved(last, given[axis + 1 :], shape[axis + 1 :])
                target = (head * shape[axis] + place) * behind + tail
                with script.If(tirx.all(place >= int64(0), place < shape[axis])), script.Then():
                    out[target] = _combined(call, out[target], new[at])

    return _scatter(builder, call, write, "scatter_elements")


def scatter_nd(builder: Any, call: Any) -> Any:
    """The rule for relax.scatter_nd: the updates one after the other, each a slice of the data."""

    def write(places: Any, new: Any, out: Any, shapes: _Shapes) -> None:
        *rows, axes = shapes.indices
        named, shape = int(axes), shapes.data  # a row of indices names the first axes of the data
        rest = count(shape[named:])
        with script.serial(int64(0), count(rows)) as update:
            place: Any = int64(0)
            inside = []
            for axis in range(named):
                index = tirx.Cast("int64", places[update * named + axis])
                place = place * shape[axis] + index
                inside += [index >= int64(0), index < shape[axis]]
            with script.If(tirx.all(*inside)), script.Then(), script.serial(int64(0), rest) as number:
                target = place * rest + number
                out[target] = _combined(call, out[target], new[update * rest + number])

    return _scatter(builder, call, write, "scatter_nd")


@dataclass(frozen=True)
class _Shapes:
    """The sizes of the data and of the indices of a scatter."""

    data: list[Any]
    indices: list[Any]


def _scatter(builder: Any, call: Any, write: Callable[[Any, Any, Any, _Shapes], None], name: str) -> Any:
    """A copy of the data into which `write` puts the updates; its tensors are seen as one axis each."""

    def compute(x: Any, places: Any, new: Any) -> Any:
        shapes = _Shapes(list(x.shape), list(places.shape))

        def body(sources: Any, target: Any) -> Any:
            old, where, given = (script.buffer_proxy(source) for source in sources)
            out = script.buffer_proxy(target)
            with IRBuilder() as made:
                with script.seq_scope():
                    with script.parallel(int64(0), count(shapes.data)) as element:
                        out[element] = old[element]
                    write(where, given, out, shapes)
                return made.get()

        made = tirx.decl_buffer(x.shape, x.dtype, name)
        return te.extern(
            [x.shape], [x, places, new], lambda i, o: body(i, o[0]), dtype=x.dtype, out_buffers=[made],
            name=name, tag=name,
        )  # fmt: skip

    return builder.call_te(compute, *call.args, primfunc_name_hint=name)


def _moved(number: Any, sizes: list[Any], into: list[Any]) -> Any:
    """The number in a tensor of sizes `into` of element `number` of one of `sizes`, which are no greater."""
    if all(tvm.sym.Analyzer().can_prove_equal(a, b) for a, b in zip(sizes, into, strict=True)):
        return number
    found: Any = int64(0)
    factor: Any = int64(1)
    for size, whole in zip(reversed(sizes), reversed(into), strict=True):
        found = found + tirx.floormod(number, size) * factor
        number, factor = tirx.floordiv(number, size), factor * whole
    return found


def _combined(call: Any, old: Any, new: Any) -> Any:
    """What an update leaves of an element."""
    reduction = str(call.attrs.reduction)
    if reduction == "update":
        return new
    if reduction not in COMBINE:
        raise ValueError(f"reduction '{reduction}' is not implemented; {', '.join(COMBINE)} are")
    return COMBINE[reduction](old, new)


def count(sizes: list[Any]) -> Any:
    """The number of elements of a tensor of these sizes."""
    total: Any = int64(1)
    for size in sizes:
        total = total * size
    return tvm.sym.Analyzer().simplify(total)


RULES = {
    "relax.gather_elements": gather_elements,
    "relax.gather_nd": gather_nd,
    "relax.scatter_elements": scatter_elements,
    "relax.scatter_nd": scatter_nd,
}
