"""Kernels that move elements to tensors whose sizes a run computes: a number per axis, and a read.

The numbers of all axes are int64 tensors of one element; each becomes a counted size (sizes.counted_size), so
a number below 0 or above its bound ends the run with KILN_TOO_MANY. Kernels that compute a number give -1
where the values of the run contradict each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx

from kiln.extents import Extent, is_one
from kiln.frontend.counted.sizes import counted_size
from kiln.frontend.symbols import Symbols, int64, int64_of

_LONGEST = 2**31 - 1
# (numbers of the run, each a function of an index) → a number
Number = Callable[..., Any]


def number(builder: Any, values: Sequence[Any], compute: Number, hint: str) -> Any:
    """An int64 tensor of one element: `compute` of the tensors `values`."""

    def expression(*tensors: Any) -> Any:
        return te.compute([int64(1)], lambda _at: compute(*tensors), name=hint)

    return builder.emit_te(expression, *values, primfunc_name_hint=hint)


def size(builder: Any, symbols: Symbols, tensor: str, axis: int, count: Any, most: Extent | None) -> Any:
    """The variable of the size of an axis of `tensor` of the file; `most`: the greatest size, if known."""
    name = f"{tensor}[{axis}]"
    return counted_size(builder, symbols, name, count, symbols.most_counted(name, most))


def move(builder: Any, shape: Sequence[Extent], values: Sequence[Any], read: Number, hint: str) -> Any:
    """A tensor of `shape`, whose element at `at` is read(at, *values)."""

    def expression(*tensors: Any) -> Any:
        return te.compute([int64_of(one) for one in shape], lambda *at: read(at, *tensors), name=hint)

    return builder.emit_te(expression, *values, primfunc_name_hint=hint)


def in_shape(builder: Any, elements: Any, shape: Sequence[Extent], hint: str) -> Any:
    """The elements of a tensor of one axis, in their order, in a tensor of `shape`."""

    def read(indices: Any, x: Any) -> Any:
        position: Any = int64(0)
        for index, extent in zip(indices, shape, strict=True):
            position = position * extent + index
        return x(position)

    return move(builder, shape, [elements], read, hint)


def element(tensor: Any, index: int) -> Any:
    """An element of a vector, or the only one of a scalar, as int64; 32-bit processors have no such casts."""
    value = tensor(int64(index)) if len(tensor.shape) else tensor()
    return tirx.Cast("int64", tirx.Cast("int32", value) if str(value.ty.dtype).startswith("float") else value)


def slice_start(begin: Any, step: Any, extent: Extent) -> Any:
    """The first position of a slice, as ONNX clamps it."""
    begin = tirx.Select(begin < int64(0), begin + extent, begin)
    forward = tirx.max(tirx.min(begin, extent), int64(0))
    backward = tirx.max(tirx.min(begin, extent - int64(1)), int64(0))
    return tirx.Select(step > int64(0), forward, backward)


def slice_count(begin: Any, end: Any, step: Any, extent: Extent) -> Any:
    """The number of positions of a slice; -1 for a step of 0."""
    first, positive = slice_start(begin, step, extent), step > int64(0)
    end = tirx.Select(end < int64(0), end + extent, end)
    last = tirx.Select(
        positive,
        tirx.max(tirx.min(end, extent), int64(0)),
        tirx.max(tirx.min(end, extent - int64(1)), int64(-1)),
    )
    distance = tirx.max(tirx.Select(positive, last - first, first - last), int64(0))
    # 32-bit processors divide no longer integers.
    width = tirx.Cast(
        "int32", tirx.min(tirx.max(tirx.Select(positive, step, -step), int64(1)), int64(_LONGEST))
    )
    steps = tirx.Cast("int32", tirx.max(distance, int64(1))) - tirx.IntImm("int32", 1)
    count = tirx.Cast("int64", tirx.truncdiv(steps, width) + tirx.IntImm("int32", 1))
    empty = tirx.any(distance == int64(0), tirx.all(tirx.Not(positive), extent == int64(0)))
    return tirx.Select(step == int64(0), int64(-1), tirx.Select(empty, int64(0), count))


def padded_place(at: Any, before: Any, extent: Extent, mode: str) -> Any:
    """The position of an axis of `extent` elements from which the element `at` of the padded axis comes."""
    source = at - before
    last = extent - int64(1)
    if mode == "wrap":
        return tirx.floormod(source, tirx.max(extent, int64(1)))
    if mode == "reflect":
        period = tirx.max(last * int64(2), int64(1))
        folded = tirx.floormod(source, period)
        return tirx.min(folded, period - folded) if not is_one(extent) else int64(0)
    return tirx.max(tirx.min(source, last), int64(0))
