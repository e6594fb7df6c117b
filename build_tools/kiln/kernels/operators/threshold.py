"""topk on CPUs with vectors: the elements of a line that are better than a threshold, then in order.

1. The threshold is found by bisection between the line's worst and best element: of floats first in the
   middle of the two numbers, which few steps bring near, then in the order of their bits, so that there are
   not many more steps than bits. Each step counts the elements that are better than the middle, a vector of
   them at a time. It ends as soon as at least k elements are better, and few more.
2. The positions of these elements are stored, without branches; where the threshold's equals are needed to
   make k, the first of them.
3. The rank of each stored element is the number of stored elements that come before it, which vectors count.
   The k best are written in the order of their ranks.

So a line of n elements needs a few times n comparisons, and about k * k more. A heap (selection.py) needs
fewer, but one after the other, with branches that no processor predicts. Of equal elements the first is
better, as in ONNX and TFLite. If elements are NaN, positions are arbitrary but never outside the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Expr
from tvm.script.ir_builder import tirx as script

from kiln.config.sizes import ceil_div
from kiln.extents import Extent
from kiln.tir.builder import bind, load, registers, serial, store
from kiln.tir.builder import divide as quotient
from kiln.tir.symbols import int64, is_dynamic
from kiln.tir.vector_expr import ramp, reinterpreted

# With more elements to keep, the comparisons of their ranks would take longer than a heap.
MOST_KEPT = 1024
# Elements of a vector. Registers of 16 bytes hold it in parts, which are independent of one another.
LANES = 16
# Steps of the bisection in the middle of two floats, before those in the order of their bits.
_BETWEEN = 8
# Vectors that are skipped together where their extreme is not better than the threshold.
_SKIPPED = 4
# Types whose values have a place in an order of 64-bit integers. Halves have no comparison on most CPUs.
DTYPES = ("float32", "int8", "uint8", "int16", "uint16", "int32", "uint32")


def memory_types(dtype: str) -> list[str]:
    """The types of the memory of a ThresholdLine: values of type `dtype`, their positions, their order."""
    return [dtype, "int32", "int32"]


def capacity(kept: int) -> int:
    """The most elements that may be better than the threshold: a quarter more than are kept, as vectors."""
    return ceil_div(kept + kept // 4 + LANES, LANES) * LANES


class ThresholdLine:
    """Writes the selection of the `kept` best elements of one line along the last axis."""

    def __init__(
        self, source: Any, results: Sequence[Any], memory: Sequence[Any], line: list[Expr],
        length: Extent, kept: int, largest: bool,
    ) -> None:  # fmt: skip
        """`results`: buffers of values and indices, of the shape of `source` but `kept` elements a line.

        `memory`: of the types of `memory_types`, for `capacity(kept)` elements and LANES more. `line`:
        indices of the axes but the last, whose extent is `length`.
        """
        self.source, self.line, self.kept, self.largest = source, line, kept, largest
        self.values, self.indices = results
        self.stored, self.places, self.order = memory
        self.length, self.dtype, self.index_dtype = length, str(source.dtype), str(self.indices.dtype)
        # The number of elements stored. TVM lets registers of more than 32 bits share memory: an int64 would
        # be moved into a part of a vector and back for each element.
        self._filled = registers([1], "int32")

    def write(self) -> None:
        """Emit the selection."""
        if is_dynamic(self.length) or self.length > capacity(self.kept):
            self._store_better(self._threshold())
        else:
            with serial(int64(self.length)) as place:
                store(self.places, [place], tirx.Cast("int32", place))
            self._fill(int64(self.length))
        self._load_stored()
        self._ranks()
        last = bind(self._number_stored() - int64(1))
        with serial(self.kept) as rank:
            # Among NaN, ranks are wrong, and may be those of the numbers after the last.
            number = bind(tirx.min(tirx.Cast("int64", load(self.order, [rank])), last))
            store(self.values, [*self.line, rank], load(self.stored, [number]))
            place = tirx.Cast(self.index_dtype, load(self.places, [number]))
            store(self.indices, [*self.line, rank], place)

    def _number_stored(self) -> Expr:
        return tirx.Cast("int64", load(self._filled, [int64(0)]))

    def _fill(self, count: Expr) -> None:
        store(self._filled, [int64(0)], tirx.Cast("int32", count))

    def _element(self, place: Expr) -> Expr:
        return load(self.source, [*self.line, place])

    def _better(self, a: Expr, b: Expr) -> Expr:
        return a > b if self.largest else a < b

    def _key(self, value: Expr) -> Expr:
        """An int64 that is the greater the better `value` is."""
        if self.dtype == "float32":
            value = _in_order(reinterpreted(value, "int32"))
        key = tirx.Cast("int64", value)
        return key if self.largest else int64(-1) - key

    def _value(self, key: Expr) -> Expr:
        """The value whose key is `key`."""
        key = key if self.largest else int64(-1) - key
        if self.dtype == "float32":
            return reinterpreted(_in_order(tirx.Cast("int32", key)), "float32")
        return tirx.Cast(self.dtype, key)

    def _threshold(self) -> Any:
        """Emit the bisection; returns the register with the threshold.

        Fewer than `kept` elements are better than the value of `high`, and `kept` or more than that of `low`.
        """
        limit, low, high = registers([1], self.dtype), registers([1], "int64"), registers([1], "int64")
        zero, steps = [int64(0)], registers([1], "int32")
        worst, best = self._extremes()
        store(low, zero, self._key(worst) - int64(1))
        store(high, zero, self._key(best))
        store(limit, zero, best)
        store(steps, zero, tirx.IntImm("int32", 0))
        with script.While(load(low, zero) + int64(1) < load(high, zero)):
            middle = bind(self._middle(load(low, zero), load(high, zero), load(steps, zero)))
            store(steps, zero, load(steps, zero) + tirx.IntImm("int32", 1))
            tried = bind(self._value(middle))
            better = bind(self._count(tried))
            with script.If(better < tirx.IntImm("int32", self.kept)):
                with script.Then():
                    store(high, zero, middle)
                    store(limit, zero, tried)
                with script.Else():
                    store(low, zero, middle)
                    enough = better <= tirx.IntImm("int32", capacity(self.kept))
                    with script.If(enough), script.Then():
                        store(high, zero, middle)
                        store(limit, zero, tried)
        return limit

    def _middle(self, low: Expr, high: Expr, steps: Expr) -> Expr:
        """The key between two keys that is tried after `steps` steps."""
        middle = bind(low + quotient(high - low, 2))
        if self.dtype != "float32":
            return middle
        half = tirx.FloatImm("float32", 0.5)
        # In a register, since TVM 0.27 widens the bits of a reinterpretation that an index is computed from.
        between = registers([1], "float32")
        store(between, [int64(0)], self._value(low) * half + self._value(high) * half)
        key = bind(self._key(load(between, [int64(0)])))
        near = tirx.all(steps < tirx.IntImm("int32", _BETWEEN), low < key, key < high)
        return tirx.Select(near, key, middle)

    def _extremes(self) -> tuple[Expr, Expr]:
        """Emit the search of the line's worst and best element."""
        least, most = registers([LANES], self.dtype), registers([LANES], self.dtype)
        lanes = ramp(int64(0), LANES)
        for register in (least, most):
            store(register, [lanes], tirx.Broadcast(self._element(int64(0)), LANES))
        blocks = self._blocks()
        with serial(blocks) as number:
            x = self._vector(number)
            store(least, [lanes], tirx.min(load(least, [lanes]), x))
            store(most, [lanes], tirx.max(load(most, [lanes]), x))
        with serial(int64(self.length) - blocks * int64(LANES), blocks * int64(LANES)) as place:
            x = self._element(place)
            store(least, [int64(0)], tirx.min(load(least, [int64(0)]), x))
            store(most, [int64(0)], tirx.max(load(most, [int64(0)]), x))
        extremes = combined(least, LANES, self.dtype, tirx.min), combined(most, LANES, self.dtype, tirx.max)
        return extremes if self.largest else extremes[::-1]

    def _count(self, limit: Expr) -> Expr:
        """Emit the count of the elements that are better than `limit`."""
        counts, lanes = registers([LANES], "int32"), ramp(int64(0), LANES)
        store(counts, [lanes], tirx.Broadcast(tirx.IntImm("int32", 0), LANES))
        blocks = self._blocks()
        with serial(blocks) as number:
            is_better = self._better(self._vector(number), tirx.Broadcast(limit, LANES))
            store(counts, [lanes], load(counts, [lanes]) + tirx.Cast(f"int32x{LANES}", is_better))
        with serial(int64(self.length) - blocks * int64(LANES), blocks * int64(LANES)) as place:
            is_better = tirx.Cast("int32", self._better(self._element(place), limit))
            store(counts, [int64(0)], load(counts, [int64(0)]) + is_better)
        return combined(counts, LANES, "int32", lambda a, b: a + b)

    def _blocks(self) -> Expr:
        return quotient(int64(self.length), LANES)

    def _vector(self, number: Expr) -> Expr:
        return load(self.source, [*self.line, ramp(number * int64(LANES), LANES)])

    def _store_better(self, threshold: Any) -> None:
        """Emit the stores of the positions of better elements, and of equal ones until there are `kept`."""
        limit = bind(load(threshold, [int64(0)]))
        filled, length = self._number_stored(), int64(self.length)

        def store_better(first: Expr, count: Expr) -> None:
            with serial(count, first) as place:
                store(self.places, [filled], tirx.Cast("int32", place))
                is_better = self._better(self._element(place), limit)
                self._fill(filled + tirx.Cast("int64", is_better))

        self._fill(int64(0))
        # Among NaN, the best element may not have been found.
        fits = self._count(limit) <= tirx.IntImm("int32", capacity(self.kept))
        with script.If(fits), script.Then():
            block = LANES * _SKIPPED
            if is_dynamic(self.length) or self.length >= block * self.kept:
                blocks = bind(quotient(length, block))
                with serial(blocks) as number:
                    best = self._best(number)
                    with script.If(self._better(best, limit)), script.Then():
                        store_better(number * int64(block), int64(block))
                store_better(blocks * int64(block), length - blocks * int64(block))
            else:
                store_better(int64(0), length)
        with script.If(filled < int64(self.kept)), script.Then():
            with serial(length) as place:
                store(self.places, [filled], tirx.Cast("int32", place))
                is_equal = tirx.Cast("int64", self._element(place) == limit)
                self._fill(tirx.min(filled + is_equal, int64(self.kept)))
            with script.While(filled < int64(self.kept)):  # of NaN
                store(self.places, [filled], tirx.Cast("int32", filled))
                self._fill(filled + int64(1))

    def _best(self, number: Expr) -> Expr:
        """Emit the search of the best element of the block `number` of _SKIPPED vectors."""
        combine, register = (tirx.max if self.largest else tirx.min), registers([LANES], self.dtype)
        value = self._vector(number * int64(_SKIPPED))
        for other in range(1, _SKIPPED):
            value = combine(value, self._vector(number * int64(_SKIPPED) + int64(other)))
        store(register, [ramp(int64(0), LANES)], value)
        return combined(register, LANES, self.dtype, combine)

    def _load_stored(self) -> None:
        """Emit the load of the stored elements' values, followed by a vector of the worst value."""
        filled = bind(self._number_stored())
        with serial(filled) as number:
            place = tirx.Cast("int64", load(self.places, [number]))
            store(self.stored, [number], self._element(place))
        with serial(LANES) as number:
            store(self.stored, [filled + number], self._worst())

    def _worst(self) -> Expr:
        if self.dtype == "float32":
            return tirx.const(-math.inf if self.largest else math.inf, self.dtype)
        return (tirx.min_value if self.largest else tirx.max_value)(self.dtype)

    def _ranks(self) -> None:
        """Emit the ranks of the stored elements, a vector of elements at a time, and their order."""
        filled = bind(self._number_stored())
        blocks = bind(quotient(filled + int64(LANES - 1), LANES))
        ranks, lanes = registers([LANES], "int32"), ramp(int64(0), LANES)

        lanes = tirx.Ramp(tirx.IntImm("int32", 0), tirx.IntImm("int32", 1), LANES)

        def count(before: Expr) -> None:
            store(ranks, [lanes], load(ranks, [lanes]) + tirx.Cast(f"int32x{LANES}", before))

        with serial(filled) as number:  # elements that are NaN have no rank of their own
            store(self.order, [number], tirx.Cast("int32", number))
        with serial(blocks) as block:
            first = block * int64(LANES)
            own = load(self.stored, [ramp(first, LANES)])
            store(ranks, [lanes], tirx.Broadcast(tirx.IntImm("int32", 0), LANES))
            with serial(first) as other:
                x = tirx.Broadcast(load(self.stored, [other]), LANES)
                count(tirx.Or(self._better(x, own), x == own))
            for number in range(LANES):
                x = tirx.Broadcast(load(self.stored, [first + int64(number)]), LANES)
                later = lanes > tirx.Broadcast(tirx.IntImm("int32", number), LANES)
                count(tirx.Or(self._better(x, own), tirx.And(x == own, later)))
            remaining = tirx.max(filled - first - int64(LANES), int64(0))
            with serial(remaining, first + int64(LANES)) as other:
                count(self._better(tirx.Broadcast(load(self.stored, [other]), LANES), own))
            for number in range(LANES):
                rank = tirx.Cast("int64", load(ranks, [int64(number)]))
                store(self.order, [rank], tirx.Cast("int32", first + int64(number)))


def _in_order(bits: Expr) -> Expr:
    """The bits of a float32 as an int32 in the order of the numbers, and back: negative ones are inverted."""
    is_negative = bits < tirx.IntImm("int32", 0)
    return tirx.Select(is_negative, tirx.bitwise_xor(bits, tirx.IntImm("int32", 0x7FFFFFFF)), bits)


def combined(register: Any, lanes: int, dtype: str, combine: Callable[[Any, Any], Any]) -> Expr:
    """Emit the combination of the `lanes` elements, a power of two, of a register; returns the result."""
    while lanes > 1:
        lanes //= 2
        half = registers([lanes], dtype)
        store(half, [_lanes(0, lanes)], combine(*(load(register, [_lanes(at, lanes)]) for at in (0, lanes))))
        register = half
    return load(register, [int64(0)])


def _lanes(first: int, count: int) -> Expr:
    return ramp(int64(first), count) if count > 1 else int64(first)
