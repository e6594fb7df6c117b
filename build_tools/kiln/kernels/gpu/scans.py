"""Running sums and products on a GPU, with several threads for a line.

A short line is computed by one thread (topi). A line of up to _DIRECT elements is a triangle: each element is
the sum of those up to it, n² additions, of which all threads do their part at once. A longer one, and one of
dynamic size, is cut into chunks of _CHUNK: sums of the chunks, sums of the chunks before each, and within a
chunk a triangle again. The order of additions is fixed by the shape.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx, topi

from kiln.tir.symbols import ceil_div, is_dynamic

_SERIAL = 16  # elements of a line that one thread adds up
_MANY_LINES, _SHORT = 1 << 14, 256  # so many lines of at most so many elements keep a GPU busy
_DIRECT = 512
_CHUNK = 64


def rule(multiplies: bool) -> Callable[[Any, Any], Any]:
    """Legalisation rule for relax.cumsum, or with `multiplies` for relax.cumprod."""

    def legalised(builder: Any, call: Any) -> Any:
        axis = None if call.attrs.axis is None else int(call.attrs.axis)
        return builder.call_te(
            scanned, call.args[0], axis, str(call.ty.dtype), bool(call.attrs.exclusive), multiplies,
            primfunc_name_hint="scan",
        )  # fmt: skip

    return legalised


def scanned(x: Any, axis: int | None, dtype: str, exclusive: bool, multiplies: bool) -> Any:
    """The running sums or products of x along an axis, of all elements where it is None, as `dtype`."""
    if axis is None:
        x, axis = topi.reshape(x, [_product(x.shape)]), 0
    axis %= len(x.shape)
    length = x.shape[axis]
    lines = [size for at, size in enumerate(x.shape) if at != axis]
    dynamic = is_dynamic(length)
    if not dynamic and _is_serial(int(length), lines):
        return (topi.cumprod if multiplies else topi.cumsum)(x, axis, dtype, exclusive)
    scan = _RunningSum(axis, dtype, exclusive, multiplies)
    return scan.in_chunks(x) if dynamic or int(length) > _DIRECT else scan.triangle(x)


def _is_serial(length: int, lines: Sequence[Any]) -> bool:
    """Whether one thread computes a line."""
    if length <= _SERIAL:
        return True
    all_known = all(not is_dynamic(size) for size in lines)
    return all_known and length <= _SHORT and int(_product(lines)) >= _MANY_LINES


def _product(sizes: Sequence[Any]) -> Any:
    total: Any = 1
    for size in sizes:
        total = total * size
    return total


class _RunningSum:
    """One running sum or product along `axis`, as reductions."""

    def __init__(self, axis: int, dtype: str, exclusive: bool, multiplies: bool) -> None:
        self.axis, self.dtype, self.exclusive = axis, dtype, exclusive
        self.neutral = tirx.const(1 if multiplies else 0, dtype)
        self.combine: Callable[[Any, Any], Any] = operator.mul if multiplies else operator.add
        times: Any = te.comm_reducer(lambda a, b: a * b, lambda kind: tirx.const(1, kind), name="product")
        self.reduce: Any = times if multiplies else te.sum

    def _at(self, index: Sequence[Any], place: Any) -> list[Any]:
        return [*index[: self.axis], place, *index[self.axis + 1 :]]

    def _value(self, x: Any, index: Sequence[Any], place: Any) -> Any:
        return x[tuple(self._at(index, place))].astype(self.dtype)

    def triangle(self, x: Any, exclusive: bool | None = None) -> Any:
        """Each element combined with all before it."""
        before = self.exclusive if exclusive is None else exclusive
        k = te.reduce_axis((0, x.shape[self.axis]), "k")

        def element(*index: Any) -> Any:
            along = index[self.axis]
            seen = k < along if before else k <= along
            return self.reduce(tirx.Select(seen, self._value(x, index, k), self.neutral), axis=k)

        return te.compute(x.shape, element, name="triangle")

    def in_chunks(self, x: Any) -> Any:
        """The running sum of a long line, in chunks."""
        length = x.shape[self.axis]
        chunks = ceil_div(length, _CHUNK)
        shape = self._at(list(x.shape), chunks)
        k = te.reduce_axis((0, _CHUNK), "k")

        def total(*index: Any) -> Any:
            element = index[self.axis] * _CHUNK + k
            value = tirx.if_then_else(element < length, self._value(x, index, element), self.neutral)
            return self.reduce(value, axis=k)

        before = self.triangle(te.compute(shape, total, name="chunks"), True)
        j = te.reduce_axis((0, _CHUNK), "j")

        def within(*index: Any) -> Any:
            along = index[self.axis]
            element = tirx.floordiv(along, _CHUNK) * _CHUNK + j
            seen = element < along if self.exclusive else element <= along
            return self.reduce(tirx.if_then_else(seen, self._value(x, index, element), self.neutral), axis=j)

        inside = te.compute(x.shape, within, name="within")

        def result(*index: Any) -> Any:
            chunk = tirx.floordiv(index[self.axis], _CHUNK)
            return self.combine(before[tuple(self._at(index, chunk))], inside[tuple(index)])

        return te.compute(x.shape, result, name="scan")
