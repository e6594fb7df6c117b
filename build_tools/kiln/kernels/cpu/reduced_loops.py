"""Loops over the reduced axes of a nest; long float sums are added in parts, for accuracy.

Each addition rounds, and a sum of n numbers added one by one has an error that grows with n: the mean of a
volume of 128 x 128 x 128 elements loses five of the seven digits of float32. Each reduced axis therefore has
a partial sum of its own, which is added to that of the axis around it, and a long axis is cut into parts.
The error then grows with the sum of the lengths, not with their product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Expr

from kiln.extents import Extent, extent
from kiln.kernels.cpu.reduce import Partials, combines
from kiln.tir.builder import int64, load, modulo, registers, serial, store, vector
from kiln.tir.fused import Nest
from kiln.tir.inline import Expanded
from kiln.tir.symbols import SymbolRanges, floor_div, is_dynamic, variables

# A sum of fewer numbers is added one by one: its error is that of the numbers themselves.
_LONG = 4096
# Elements of a part of an axis; an axis of fewer than two parts is not cut.
_PART = 512

# Elements of a part of an axis that lanes run along: each lane adds hundreds, and so many parts are added.
_SEGMENT = 16_384

Bound = dict[Any, Expr]


def over(axes: Sequence[Any], bound: Bound, inside: Callable[[Bound], None]) -> None:
    """Emit loops over `axes`, with inside(indices of all axes) as the body."""
    if not axes:
        inside(bound)
        return
    size = extent(axes[0].dom.extent)
    if isinstance(size, int) and size == 1:
        over(axes[1:], {**bound, axes[0].var: int64(0)}, inside)
        return
    with serial(size) as index:
        over(axes[1:], {**bound, axes[0].var: index}, inside)


def is_long_sum(nest: Nest, ranges: SymbolRanges) -> bool:
    """Whether `nest` is a float sum of so many terms that it is added in parts."""
    if not str(nest.buffer.dtype).startswith("float") or not combines(nest):
        return False
    terms = ranges.greatest(ranges.product([axis.dom.extent for axis in nest.reduced]))
    return isinstance(nest.value, tirx.Add) and terms >= _LONG


def added_in_parts(
    axes: Sequence[Any],
    bound: Bound,
    sums: Any,
    accumulate: Callable[[Bound, Any], None],
    ranges: SymbolRanges,
) -> None:
    """Emit loops over `axes` that add to each lane of `sums`.

    accumulate(indices, register) emits the body, which adds a term to each lane of the register.
    """
    axis, *inner = axes

    def below(index: Expr, register: Any) -> None:
        indices = {**bound, axis.var: index}
        if inner:
            added_in_parts(inner, indices, register, accumulate, ranges)
        else:
            accumulate(indices, register)

    def part(loop: Callable[[Any], None]) -> None:
        partial = registers([int(sums.shape[0])], str(sums.dtype))
        with vector(int(sums.shape[0])) as lane:
            store(partial, [lane], tirx.const(0, str(sums.dtype)))
        loop(partial)
        with vector(int(sums.shape[0])) as lane:
            store(sums, [lane], load(sums, [lane]) + load(partial, [lane]))

    size = extent(axis.dom.extent)
    if inner:
        with serial(size) as index:
            part(lambda partial: below(index, partial))
        return

    def loop(first: Expr, count: Extent, register: Any) -> None:
        with serial(count) as index:
            below(first + index, register)

    def segment(first: Expr, count: Extent) -> None:
        if isinstance(count, int) and count == _PART:
            part(lambda partial: loop(first, count, partial))
        else:  # the rest
            loop(first, count, sums)

    if ranges.greatest(size) >= 2 * _PART:
        _in_segments(size, _PART, segment)
    else:
        loop(int64(0), size, sums)


def along_lanes(
    nest: Nest,
    bound: Bound,
    start: Expr,
    term: Callable[[Bound, Expr], Expr],
    lanes: int,
    ranges: SymbolRanges,
) -> Any:
    """Emit a reduction with lanes along the last reduced axis; return a register of one element.

    `start`: the initial value. term(indices of the other axes, position on the last axis) is what is reduced.
    """
    *before, last = nest.reduced
    operation, dtype, length = type(nest.value), str(nest.buffer.dtype), extent(last.dom.extent)
    is_cut = ranges.greatest(length) >= 2 * _SEGMENT
    if not is_long_sum(nest, ranges) or not (is_cut or before):
        partial = Partials(operation, dtype, start, length, lanes, ranges)
        over(before, bound, lambda inner: partial.combine(lambda position: term(inner, position)))
        return partial.total()
    total, only = registers([1], dtype), [int64(0)]
    store(total, only, start)

    def add(size: Extent, emit: Callable[[Partials], None]) -> None:
        partial = Partials(operation, dtype, tirx.const(0, dtype), size, lanes, ranges)
        emit(partial)
        store(total, only, load(total, only) + load(partial.total(), only))

    def cut(inner: Bound) -> None:
        def segment(first: Expr, size: Extent) -> None:
            add(size, lambda partial: partial.combine(lambda position: term(inner, first + position)))

        _in_segments(length, _SEGMENT, segment)

    def whole(outer: Bound) -> None:
        def rows(first: Expr, count: Extent) -> None:
            def emit(partial: Partials) -> None:
                with serial(count) as index:
                    row = {**outer, before[-1].var: first + index}
                    partial.combine(lambda position: term(row, position))

            add(length, emit)

        _in_segments(extent(before[-1].dom.extent), _PART, rows)

    if is_cut:
        over(before, bound, cut)
    else:
        over(before[:-1], bound, whole)
    return total


def _in_segments(length: Extent, size: int, visit: Callable[[Expr, Extent], None]) -> None:
    """Call visit(first, length) for each `size` elements of an axis of `length`, and for the remainder."""
    if is_dynamic(length) or length >= size:
        with serial(floor_div(length, size)) as number:
            visit(number * int64(size), size)
    remainder = modulo(length, size) if is_dynamic(length) else length % size
    if is_dynamic(remainder) or remainder:
        visit(length - remainder if is_dynamic(length) else int64(length - remainder), remainder)


def lanes_across(nest: Nest, lanes: int, expanded: Expanded, ranges: SymbolRanges) -> bool:
    """Whether lanes should run along the last reduced axis instead of the last axis of the output."""
    if expanded.steps or not nest.reduced or not combines(nest):
        return False
    if ranges.greatest(nest.reduced[-1].dom.extent) < lanes:
        return False
    if not nest.axes or ranges.greatest(nest.extents[-1]) < min(lanes, 4):
        return True
    # Where adjacent outputs read distant elements, and adjacent terms read adjacent elements.
    inner, last = nest.axes[-1].var, nest.reduced[-1].var
    along = across = False
    for read in expanded.reads():
        if read.source.same_as(nest.buffer) or not read.indices:
            continue
        used = [variables(index) for index in read.indices]
        fast, slow = used[-1], [variable for index in used[:-1] for variable in index]
        along = along or any(inner.same_as(variable) for variable in fast)
        across = across or (
            any(last.same_as(variable) for variable in fast) and any(inner.same_as(v) for v in slow)
        )
    return across and not along
