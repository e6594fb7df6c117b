"""Buffers and numbers that a kernel of this package changes, and a sort."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as script

from kiln.extents import Extent
from kiln.frontend.symbols import int64

# By the kind of a reduction, the function that combines two numbers.
COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda a, b: a + b,
    "prod": lambda a, b: a * b,
    "max": tirx.max,
    "min": tirx.min,
}


class Slots:
    """Numbers in an int64 buffer of one axis, by their index."""

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer

    def __getitem__(self, index: int) -> Any:
        return tirx.BufferLoad(self._buffer, [int64(index)])

    def __setitem__(self, index: int, value: Any) -> None:
        script.buffer_store(self._buffer, tirx.Cast("int64", value), [int64(index)])


class IndexRow:
    """Row `number` of a buffer of two axes."""

    def __init__(self, buffer: Any, number: int) -> None:
        self._buffer, self._number = buffer, int64(number)

    def __getitem__(self, index: Any) -> Any:
        return tirx.Cast("int64", tirx.BufferLoad(self._buffer, [self._number, index]))

    def __setitem__(self, index: Any, value: Any) -> None:
        script.buffer_store(
            self._buffer, tirx.Cast(str(self._buffer.dtype), value), [self._number, index]
        )  # fmt: skip


def serial(extent: Extent) -> Any:
    """A loop from 0 to `extent`."""
    return script.serial(int64(0), int64(extent) if isinstance(extent, int) else extent)


SORT_SLOTS = 2  # the slots that `merge_sort` needs


def merge_sort(
    order: IndexRow, spare: IndexRow, count: Any, greatest: int, follows: Callable[[Any, Any], Any],
    slots: Slots, first: int,
) -> None:  # fmt: skip
    """Sort the first `count` entries of `order`, at most `greatest`, with a bottom-up merge sort.

    `follows(a, b)`: emits code and returns whether entry a has to come after entry b; if neither of two
    entries follows the other, they keep their order. `spare`: memory of the size of `order`. Slots `first`
    and the next are changed.
    """
    last = count - int64(1)
    width = 1
    while width < greatest:
        with script.If(int64(width) < count), script.Then():
            with serial(tirx.floordiv(count + int64(2 * width - 1), int64(2 * width))) as block:
                start = block * int64(2 * width)
                middle = tirx.min(start + int64(width), count)
                end = tirx.min(start + int64(2 * width), count)
                slots[first], slots[first + 1] = start, middle
                with serial(end - start) as number:
                    # Both entries are loaded before it is known whether both sides have one left.
                    left, right = (order[tirx.min(slots[side], last)] for side in (first, first + 1))
                    swapped = follows(left, right)
                    has_left, has_right = slots[first] < middle, slots[first + 1] < end
                    with script.If(tirx.all(has_right, tirx.any(tirx.Not(has_left), swapped))):
                        with script.Then():
                            spare[start + number] = order[tirx.min(slots[first + 1], last)]
                            slots[first + 1] = slots[first + 1] + int64(1)
                        with script.Else():
                            spare[start + number] = order[tirx.min(slots[first], last)]
                            slots[first] = slots[first] + int64(1)
            with serial(count) as number:
                order[number] = spare[number]
        width *= 2
