"""Sum, product, maximum or minimum along a contiguous axis, by vectors of partial results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.ir import Expr, TensorLoad

from kiln.extents import Extent
from kiln.tir.builder import chunks, divide, load, modulo, registers, serial, store, vector
from kiln.tir.fused import Nest
from kiln.tir.symbols import SymbolRanges, floor_div, int64, is_dynamic
from kiln.tir.tiled_loops import remainder

# Vectors of partial results: enough to hide the latency of an addition.
PARTIAL = 4


def combines(nest: Nest) -> bool:
    """Whether `nest` reduces by a sum, product, maximum or minimum of its own buffer and one term."""
    if not isinstance(nest.value, tirx.Add | tirx.Max | tirx.Min | tirx.Mul):
        return False
    buffer_read = nest.value.a
    return isinstance(buffer_read, TensorLoad) and buffer_read.source.same_as(nest.buffer)


def term_of(nest: Nest) -> Nest:
    """`nest` with only the reduced term as its value; requires `combines(nest)`."""
    return Nest(nest.buffer, nest.axes, nest.reduced, nest.store, nest.value.b, nest.init)


def each_vector(
    length: Extent, lanes: int, streams: int, visit: Callable[[Expr, int, int], None], ranges: SymbolRanges
) -> None:
    """Emit visit(first, width, number) over [0, length): full vectors, then narrower ones.

    `number` cycles through [0, streams), so that consecutive vectors can use different partial results.
    """
    step = streams * lanes
    greatest_length = ranges.greatest(length)
    if greatest_length >= step:
        with serial(floor_div(length, step)) as block:
            for number in range(streams):
                visit(block * int64(step) + int64(number * lanes), lanes, number)
    if is_dynamic(length):
        if streams > 1 and greatest_length >= lanes:
            done = length - modulo(length, step)
            with serial(divide(modulo(length, step), lanes)) as block:
                visit(done + block * int64(lanes), lanes, 0)
        remainder(length, lanes, lambda first, width: visit(first, width, 0))
        return
    done = length - length % step
    for number, first in enumerate(range(done, length - length % lanes, lanes)):
        visit(int64(first), lanes, number)
    done = length - length % lanes
    for offset, width in chunks(length - done, lanes):
        visit(int64(done + offset), width, 0)


class Partials:
    """Partial results of `operation` along an axis of `length` elements, each initialised to `start`.

    There are up to PARTIAL vectors of `lanes` results of type `dtype`, so that operations do not wait for one
    another, and a narrower one for each width in the remainder.
    """

    def __init__(
        self, operation: Any, dtype: str, start: Expr, length: Extent, lanes: int, ranges: SymbolRanges
    ) -> None:
        self.operation, self.dtype, self.length, self.lanes = operation, dtype, length, lanes
        self._ranges = ranges
        if is_dynamic(length):
            widths = [(number, lanes) for number in range(PARTIAL)]
            widths += [(PARTIAL, 1 << power) for power in range(lanes.bit_length() - 1)]
        else:
            widths = [(number, lanes) for number in range(min(length // lanes, PARTIAL))]
            widths += [(PARTIAL, width) for _, width in chunks(length % lanes, lanes)]
        self._parts = {key: registers([key[1]], dtype) for key in widths}
        for (_, width), register in self._parts.items():
            with vector(width) as lane:
                store(register, [lane], start)

    def combine(self, term: Callable[[Expr], Expr]) -> None:
        """Emit the loop that combines term(position) of every position with the partial results."""

        def visit(first: Expr, width: int, number: int) -> None:
            register = self._parts[(number if width == self.lanes else PARTIAL, width)]
            with vector(width) as lane:
                store(register, [lane], self.operation(load(register, [lane]), term(first + lane)))

        each_vector(self.length, self.lanes, PARTIAL, visit, self._ranges)

    def total(self) -> Any:
        """Combine all partial results, halving vectors in turn; return a register of one element."""
        waiting = sorted(self._parts.values(), key=lambda register: int(register.shape[0]), reverse=True)
        while len(waiting) > 1 or int(waiting[0].shape[0]) > 1:
            width = int(waiting[0].shape[0])
            if len(waiting) > 1 and int(waiting[1].shape[0]) == width:
                result = registers([width], self.dtype)
                with vector(width) as lane:
                    pair = load(waiting[0], [lane]), load(waiting[1], [lane])
                    store(result, [lane], self.operation(*pair))
                waiting = [*waiting[2:], result]
            else:
                half = registers([width // 2], self.dtype)
                with vector(width // 2) as lane:
                    upper = load(waiting[0], [lane + int64(width // 2)])
                    store(half, [lane], self.operation(load(waiting[0], [lane]), upper))
                waiting = [half, *waiting[1:]]
            waiting.sort(key=lambda register: int(register.shape[0]), reverse=True)
        return waiting[0]
