"""Loop nests without a family of their own: vectorised loops made from the fused expression itself.

Computation  One nest: an elementwise, injective or broadcasting chain, or one reduction with the chain
             that feeds it (pooling, sums, maxima, the nests of softmax and normalisations).
Schedule     The last axis of the output is cut into vectors, in the pieces of axis_pieces.py; reductions
             run inside, with their sum in a register. When the output's last axis is shorter than a vector
             and a reduced axis is long, lanes run along that axis instead and are combined at the end. A
             nest that reads a tensor along another axis than it writes (a transpose) is tiled, so that every
             cache line read is used while it is in the cache. Tasks are the outer axes, flattened.
Applies      Any nest that stores one value, including matmuls that no family computes.
Accuracy     Lanes along a reduced axis change the order of a float sum: its error becomes smaller. Long sums
             are added in parts (kiln.kernels.cpu.reduced_loops).
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from typing import Any

from tvm import tirx
from tvm.ir import Expr

from kiln.config.sizes import ceil_div
from kiln.extents import Extent, extent
from kiln.kernels.cpu import interleave, reduced_loops, transposed
from kiln.kernels.cpu.axis_pieces import pieces_of
from kiln.kernels.cpu.epilogue import Epilogue
from kiln.kernels.cpu.flat_nest import flattened
from kiln.kernels.cpu.merged_axes import with_longer_rows
from kiln.kernels.cpu.reduce import term_of
from kiln.kernels.cpu.split_axes import with_split_axes
from kiln.tir.builder import (
    Kernel,
    KernelAndBuffers,
    Machine,
    argument,
    chunks,
    define,
    int64,
    load,
    registers,
    serial,
    store,
    unravel,
    vector,
)
from kiln.tir.fused import Fused, Nest, replace
from kiln.tir.inline import Expanded
from kiln.tir.symbols import SymbolRanges, is_dynamic, variables
from kiln.tir.tiled_loops import blocks, tasks_of

# Below this many elements a kernel is one task: starting threads costs more than it saves.
SMALL = 4096
# Approximate vector operations per element of an expression: sums and products, loads and a store.
_STEPS = 4

# Elements of a tile along the axis in which a transposed operand is contiguous: a cache line of float32.
_TILE = 16


def _transposed(nest: Nest, reads: Sequence[Any]) -> int | None:
    """Position of the outer axis along which a tensor read across the output's last axis is contiguous.

    None where no tensor is read so, or where the nest is too small for tiles.
    """
    if nest.reduced or len(nest.axes) < 2 or any(is_dynamic(size) for size in nest.extents):
        return None
    inner = nest.axes[-1]
    if math.prod(nest.extents) < SMALL or nest.extents[-1] < _TILE:
        return None
    for read in reads:
        if not read.indices:  # a scalar
            continue
        *before, last = read.indices
        while isinstance(last, tirx.Add | tirx.Sub) and isinstance(last.b, tirx.IntImm):
            last = last.a
        for number, axis in enumerate(nest.axes[:-1]):
            across = any(inner.var.same_as(variable) for index in before for variable in variables(index))
            if last.same_as(axis.var) and across and nest.extents[number] >= _TILE:
                return number
    return None


class _Writer:
    """Emits the loops of one nest into the kernel being defined.

    `buffers`: the kernel's buffer for each buffer of the fused function that the nest reads or stores.
    `lanes`: elements of a vector. `last`: the nest that is computed from each element (Fused.epilogue), or
    None. `axes`: all axes of the nest, in the order of those of `last`.
    """

    def __init__(
        self,
        fused: Fused,
        nest: Nest,
        buffers: dict[Any, Any],
        lanes: int,
        last: Nest | None,
        axes: list[Any],
    ) -> None:
        self.fused, self.nest, self.buffers, self.lanes = fused, nest, buffers, lanes
        self.output = buffers[(nest if last is None else last).buffer]
        self.epilogue = None if last is None else Epilogue(fused, nest, last, buffers)
        self.outputs = axes
        self.expanded = fused.expanded(nest, list(buffers))
        self.stop = {
            buffer: lambda where, target=target: load(target, where)
            for buffer, target in buffers.items()
            if buffer is not nest.buffer
        }

    def with_elements(self, expanded: Expanded) -> _Writer:
        """This writer, for elements that are computed as `expanded` says."""
        other = copy.copy(self)
        other.expanded = expanded
        return other

    @contextlib.contextmanager
    def lanes_from(self, bound: dict[Any, Expr], axis: Any, first: Expr, width: int) -> Iterator[Any]:
        """Emit a vector of `width` elements along `axis` from `first`; the caller emits the loop's body.

        Yields the index of every axis, the lane, and a function (expression, loads) → value at that lane.
        Values that an element reads several times are computed into registers before.
        """
        computed: dict[Any, Any] = {}

        def at(lane: Expr) -> tuple[dict[Any, Expr], Expr, Any]:
            lane_bound = {**bound, axis.var: first + lane}
            shared = {buffer: lambda _, held=held: load(held, [lane]) for buffer, held in computed.items()}
            return (
                lane_bound,
                lane,
                lambda expr, own_rules: replace(expr, lane_bound, {**self.stop, **shared, **own_rules}),
            )

        for step in self.expanded.steps:
            register = registers([width], str(step.buffer.dtype))
            with vector(width) as lane:
                store(register, [lane], at(lane)[2](step.value, {}))
            computed[step.buffer] = register
        with vector(width) as lane:
            yield at(lane)

    def store(self, bound: dict[Any, Expr], value: Expr) -> None:
        """Store `value`, after the epilogue if there is one, as the output's element at the axes `bound`."""
        if self.epilogue is not None:
            self.epilogue.store([bound[axis.var] for axis in self.outputs], value)
            return
        store(self.output, [replace(index, bound, {}) for index in self.nest.store], value)

    def points(self, bound: dict[Any, Expr], axis: Any, first: Expr, width: int) -> None:
        """Emit `width` adjacent outputs along `axis` from `first`."""
        nest = self.nest
        if not nest.reduced:
            with self.lanes_from(bound, axis, first, width) as (lane_bound, _, value):
                self.store(lane_bound, value(self.expanded.value, {}))
            return
        dtype = str(nest.buffer.dtype)
        sums = registers([width], dtype)
        with vector(width) as lane:
            store(sums, [lane], self._init({**bound, axis.var: first + lane}))

        def accumulate(inner: dict[Any, Expr], register: Any) -> None:
            self._accumulate(inner, axis, first, width, register)

        if reduced_loops.is_long_sum(nest, self.fused.ranges):
            reduced_loops.added_in_parts(nest.reduced, dict(bound), sums, accumulate, self.fused.ranges)
        else:
            reduced_loops.over(nest.reduced, dict(bound), lambda inner: accumulate(inner, sums))
        with vector(width) as lane:
            self.store({**bound, axis.var: first + lane}, load(sums, [lane]))

    def _init(self, bound: dict[Any, Expr]) -> Expr:
        return replace(self.nest.init, bound, self.stop)

    def _accumulate(self, bound: dict[Any, Expr], axis: Any, first: Expr, width: int, sums: Any) -> None:
        with self.lanes_from(bound, axis, first, width) as (_, lane, value):
            own_rules = {self.nest.buffer: lambda _where: load(sums, [lane])}
            store(sums, [lane], value(self.expanded.value, own_rules))

    def across(self, bound: dict[Any, Expr]) -> None:
        """Emit one output whose last reduced axis is cut into vectors of partial results."""
        term, last = term_of(self.nest), self.nest.reduced[-1]

        def value(inner: dict[Any, Expr], position: Expr) -> Expr:
            return self.fused.value(term, {**inner, last.var: position}, self.stop)

        total = reduced_loops.along_lanes(
            self.nest, bound, self._init(bound), value, self.lanes, self.fused.ranges
        )
        self.store(bound, load(total, [int64(0)]))


@dataclass(frozen=True)
class _Loops:
    """The loops over the output of a nest: over `outer` axes, then vectors along the axis `inner`.

    `alone`: axes of extent 1, with index 0. `sizes`: extents of the outer axes; that of axis `tiled` counts
    tiles. `across`: whether lanes run along the innermost reduced axis, not along `inner`. `inner` is None
    for an output that is a single number.
    """

    nest: Nest
    outer: list[Any]
    inner: Any
    alone: dict[Any, Expr]
    sizes: list[Extent]
    tiled: int | None
    across: bool
    lanes: int

    def emit(self, writer: _Writer, task: Expr) -> None:
        """Emit the elements of one task: one index of each outer axis."""
        bound: dict[Any, Expr] = dict(self.alone)
        bound |= {axis.var: index for axis, index in zip(self.outer, unravel(task, self.sizes), strict=True)}
        if self.inner is None:
            self._number(writer, bound)
        elif self.across:
            self._across(writer, bound)
        else:
            self._vectors(writer, bound)

    def _number(self, writer: _Writer, bound: dict[Any, Expr]) -> None:
        """Emit an output that is a single number."""
        if self.across:
            writer.across(bound)
        else:
            alone = tirx.IterVar((0, 1), "alone", tirx.IterVar.DataPar)
            writer.points(bound, alone, int64(0), 1)

    def _across(self, writer: _Writer, bound: dict[Any, Expr]) -> None:
        """Emit the elements along `inner` one by one, each with lanes along the reduced axis."""
        length = extent(self.inner.dom.extent)
        if isinstance(length, int) and length == 1:
            writer.across({**bound, self.inner.var: int64(0)})
            return
        with serial(length) as index:
            writer.across({**bound, self.inner.var: index})

    def _vectors(self, writer: _Writer, bound: dict[Any, Expr]) -> None:
        """Emit the elements along `inner` as vectors, with narrower ones at the end."""
        length, lanes = extent(self.inner.dom.extent), self.lanes
        if is_dynamic(length):
            blocks(length, lanes, lambda first, width: writer.points(bound, self.inner, first, width))
            return
        for piece in pieces_of(writer.expanded, self.inner, length, lanes):
            self._piece(writer.with_elements(piece.expanded), bound, piece.begin, piece.end - piece.begin)

    def _piece(self, writer: _Writer, bound: dict[Any, Expr], begin: int, length: int) -> None:
        """Emit `length` elements along `inner` from `begin`."""
        whole = length // self.lanes
        if whole:
            with serial(whole) as block:
                self._points(writer, bound, block * int64(self.lanes) + int64(begin), self.lanes)
        for offset, width in chunks(length % self.lanes, self.lanes):
            self._points(writer, bound, int64(begin + whole * self.lanes + offset), width)

    def _points(self, writer: _Writer, bound: dict[Any, Expr], first: Expr, width: int) -> None:
        """Emit `width` elements from `first`, for each index of a tile where an outer axis is tiled."""
        if self.tiled is None:
            writer.points(bound, self.inner, first, width)
            return
        axis = self.outer[self.tiled]
        begin, most = bound[axis.var] * int64(_TILE), self.nest.extents[self.tiled]
        whole_tiles = most % _TILE == 0
        rows = int64(_TILE) if whole_tiles else tirx.min(int64(_TILE), int64(most) - begin)
        with serial(rows) as row:
            writer.points({**bound, axis.var: begin + row}, self.inner, first, width)


def _loops(nest: Nest, lanes: int, expanded: Expanded, ranges: SymbolRanges) -> _Loops:
    """The loops of `nest`; vectors run along the last axis whose extent is not 1."""
    wide = [axis for axis in nest.axes if is_dynamic(axis.dom.extent) or int(axis.dom.extent) != 1]
    alone = {axis.var: int64(0) for axis in nest.axes if axis not in wide}
    nest = replace_fields(nest, axes=wide)
    outer, inner = (wide[:-1], wide[-1]) if wide else ([], None)
    sizes = [extent(axis.dom.extent) for axis in outer]
    tiled = _transposed(nest, expanded.reads())
    if tiled is not None:
        sizes[tiled] = ceil_div(sizes[tiled], _TILE)
    across = reduced_loops.lanes_across(nest, lanes, expanded, ranges)
    return _Loops(nest, outer, inner, alone, sizes, tiled, across, lanes)


def make(
    fused: Fused, nest: Nest, stored: Sequence[Any], machine: Machine, last: Nest | None = None
) -> KernelAndBuffers:
    """Make the kernel of one nest; return it with the buffers of its parameters (the output last).

    `last`: for a reduction, the nest that is computed from each of its elements (Fused.epilogue), or None.
    """
    inputs, ranges = fused.inputs(nest, stored), fused.ranges
    output = nest if last is None else last
    if last is not None:
        others = fused.inputs(last, [*stored, nest.buffer])
        inputs += [buffer for buffer in others if buffer not in inputs and not buffer.same_as(nest.buffer)]
    dtypes = [str(buffer.dtype) for buffer in (nest.buffer, output.buffer, *inputs)]
    lanes = min(machine.lanes(dtype) for dtype in ["float32", *dtypes])
    in_place = fused.same_index(nest, stored, inputs)
    nest = nest if last else with_split_axes(nest, fused.expanded(nest, stored), lanes, ranges)
    expanded = fused.expanded(nest, stored)
    interleaved = (
        None if expanded.steps else interleave.read_interleaving(nest, expanded.value, lanes, ranges)
    )
    if interleaved is not None:
        return interleave.make(interleaved, fused, stored, machine, _STEPS)
    if last is None and not expanded.steps:
        turned = transposed.read_transposition(nest, expanded, fused, lanes, machine)
        if turned is not None:
            return transposed.make(turned, in_place, inputs, machine, _STEPS)
        if not machine.parallel:
            nest = flattened(nest, expanded.reads())
        nest = with_longer_rows(nest, expanded, fused.tables, lanes, ranges, machine.parallel)
        expanded = fused.expanded(nest, stored)
    loops = _loops(nest, lanes, expanded, ranges)
    count = ranges.product(loops.sizes)
    work = ranges.greatest(ranges.product([*nest.extents, *(axis.dom.extent for axis in nest.reduced)]))
    # An output with a single axis (a vector) is one task.
    tasks = count if ranges.greatest(count) > 1 and machine.shares(_STEPS * work // lanes) else None

    def body(buffers: list[tirx.Buffer], begin: Expr, end: Expr) -> None:
        buffer_of = dict(zip([*inputs, output.buffer], buffers, strict=True))
        writer = _Writer(fused, loops.nest, buffer_of, lanes, last, list(nest.axes))
        with tasks_of(count, tasks is not None, begin, end) as task:
            loops.emit(writer, task)

    arguments = [argument(buffer, fused.tables) for buffer in [*inputs, output.buffer]]
    func = define(arguments, tasks, body, bool(in_place), ranges)
    return Kernel(func, tasks, {}, "loops", in_place, ranges=ranges), [*inputs, output.buffer]
