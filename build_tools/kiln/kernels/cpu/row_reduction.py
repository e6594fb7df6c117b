"""Row reductions (softmax, layer norm): reduce the last axis, then use the result along that axis.

Computation  A chain over rows: sums or maxima of the last axis, and elementwise results that read them.
Schedule     Row by row, so that a row stays in the L1 cache from its first sum to its result: each reduction
             is one loop with four vectors of partial results, combined as a tree; an elementwise nest that
             is costly and read again (the exponentials of softmax) is computed once and kept in the memory
             of the output, or where that has another type, in a row of its own; rows that are too long for
             the stack of a task are computed again. A division by a value that is constant over the row
             becomes a multiplication. Tasks are rows.
Applies      Groups of more than one loop nest with one output, all over the same rows; any length.
Accuracy     Partial sums make a float sum's error smaller; the multiplication instead of a division costs at
             most one unit in the last place.
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace as replace_fields
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, TensorLoad

from kiln.callbacks import structural_map, structural_walk
from kiln.extents import Extent, extent
from kiln.kernels.cpu.elementwise import SMALL
from kiln.kernels.cpu.reduce import Partials, combines, each_vector, term_of
from kiln.tir.abi import STACK_BYTES
from kiln.tir.builder import (
    Kernel,
    KernelAndBuffers,
    Machine,
    argument,
    bind,
    define,
    load,
    registers,
    store,
    unravel,
    vector,
)
from kiln.tir.fused import Fused, Nest, replace
from kiln.tir.inline import LARGEST_TREE, weights
from kiln.tir.symbols import SymbolRanges, int64
from kiln.tir.tiled_loops import tasks_of


@dataclass(frozen=True)
class RowReduction:
    """`nests` in order, each over rows of `length` elements; `lead`: sizes of the axes before the last.

    `kept`: an intermediate nest that is stored, in the memory of the output if it has the output's type.
    """

    nests: list[Nest]
    lead: list[Extent]
    length: Extent
    output: Nest
    kept: Nest | None

    @property
    def own_row(self) -> bool:
        """Whether `kept` needs memory of its own."""
        return self.kept is not None and str(self.kept.buffer.dtype) != str(self.output.buffer.dtype)


def _last_axis(nest: Nest, lead: list[Extent], length: Extent, ranges: SymbolRanges) -> Any:
    """The axis of `nest` along the row, or None when `nest` is not over rows of sizes `lead` and `length`."""
    extents = nest.extents
    if not ranges.same_shape(extents[: len(lead)], lead):
        return None
    inner_axes = nest.axes[len(lead) :]
    along = nest.reduced if nest.reduced else inner_axes
    others = inner_axes if nest.reduced else []
    if len(along) != 1 or not ranges.same(along[0].dom.extent, length):
        return None
    return along[0] if all(ranges.same(axis.dom.extent, 1) for axis in others) else None


def _plain_store(nest: Nest) -> bool:
    """Whether `nest` stores each element at the indices of its axes, in order."""
    store_axes = zip(nest.store, nest.axes, strict=False)
    return len(nest.store) == len(nest.axes) and all(index.same_as(axis.var) for index, axis in store_axes)


def read_rows(fused: Fused) -> RowReduction | None:
    """The nests of `fused` that must be stored, as a chain over rows; None where they do not form a chain."""
    nests, ranges = fused.materialised(), fused.ranges
    if len(nests) < 2 or len(fused.outputs) != 1 or not nests[0].reduced or len(nests[0].reduced) != 1:
        return None
    output = fused.by_buffer[fused.outputs[0]]
    length = extent(nests[0].reduced[0].dom.extent)
    if (
        output.reduced
        or not output.axes
        or nests[-1] is not output
        or not ranges.same(output.extents[-1], length)
    ):
        return None
    lead = output.extents[:-1]
    stored_nest = None
    for nest in nests:
        if _last_axis(nest, lead, length, ranges) is None or not _plain_store(nest):
            return None
        if nest.reduced and not combines(nest):
            return None
        if not nest.reduced and nest is not output:
            if stored_nest is not None:
                return None
            stored_nest = nest
    size = weights(fused.nests, {nest.buffer for nest in nests})
    if any(size[nest.buffer] > LARGEST_TREE for nest in nests):
        return None
    rows = RowReduction(nests, lead, length, output, stored_nest)
    return rows if all(_reads_own_row(fused, rows, nest) for nest in nests) else None


def _reads_own_row(fused: Fused, rows: RowReduction, nest: Nest) -> bool:
    """Whether `nest` reads results of the chain only at the row, and element, that it computes.

    Sizes do not show this: a softmax along H of a square image has as many columns as rows have elements.
    """
    axis = _last_axis(nest, rows.lead, rows.length, fused.ranges)
    own_axes = [*nest.axes[: len(rows.lead)], axis]
    computed = {other.buffer: _as_it_is(other.buffer) for other in rows.nests if other is not nest}
    reduced = {other.buffer for other in rows.nests if other.reduced}

    def visit(read: TensorLoad) -> Any:
        if read.source not in computed:
            return None
        axes_read = own_axes[:-1] if read.source in reduced else own_axes
        reads_row = all(
            index.same_as(read_axis.var) or fused.ranges.same(read_axis.dom.extent, 1)
            for index, read_axis in zip(read.indices, axes_read, strict=False)
        )
        return None if reads_row else tvm_ffi.VisitInterrupt(read)

    bound = {other.var: other.var for other in [*nest.axes, *nest.reduced]}
    value = fused.value(term_of(nest) if nest.reduced else nest, bound, computed)
    return structural_walk(value, ((TensorLoad, visit),)) is None


class _Row:
    """Emits the loops over one row."""

    def __init__(
        self, fused: Fused, rows: RowReduction, buffers: dict[Any, Any], lead: list[Expr], memory: Any
    ) -> None:
        """`memory`: a row for `rows.kept` where it needs memory of its own, else None."""
        self.fused, self.rows, self.lead, self.memory = fused, rows, lead, memory
        self.output = buffers[rows.output.buffer]
        self.reads: dict[Any, Any] = {
            buffer: lambda where, target=target: load(target, where) for buffer, target in buffers.items()
        }

    def value(self, nest: Nest, position: Expr) -> Expr:
        """The value that `nest` stores, or the term that it reduces, at `position` of this row."""
        axis = _last_axis(nest, self.rows.lead, self.rows.length, self.fused.ranges)
        bound = {other.var: int64(0) for other in nest.axes}
        bound |= {other.var: index for other, index in zip(nest.axes, self.lead, strict=False)}
        bound[axis.var] = position
        term = nest if not nest.reduced else term_of(nest)
        return self.fused.value(term, bound, self.reads)

    def elementwise(self, nest: Nest, lanes: int) -> None:
        """Emit the loop that stores the row of `nest`, in the memory of the output or of its own."""
        own_memory = self.rows.own_row and nest is not self.rows.output
        target, lead = (self.memory, []) if own_memory else (self.output, self.lead)

        def visit(first: Expr, width: int) -> None:
            with vector(width) as lane:
                value = self.value(nest, first + lane)
                store(target, [*lead, first + lane], _by_reciprocal(value, first + lane))

        each_vector(
            self.rows.length, lanes, 1, lambda first, width, _: visit(first, width), self.fused.ranges
        )
        if nest is not self.rows.output:
            self.reads[nest.buffer] = lambda where: load(target, [*lead, where[-1]])

    def reduce(self, nest: Nest, lanes: int) -> None:
        """Emit the reduction of the row to one number, which later nests read from a register."""
        dtype, start = str(nest.buffer.dtype), replace(nest.init, {}, {})
        partial = Partials(type(nest.value), dtype, start, self.rows.length, lanes, self.fused.ranges)
        partial.combine(lambda position: self.value(nest, position))
        result = partial.total()
        self.reads[nest.buffer] = lambda _where: load(result, [int64(0)])


def _by_reciprocal(value: Expr, position: Expr) -> Expr:
    """`value` with float32 divisions by an expression constant over the row as multiplications.

    An expression is constant over the row where it does not contain the variables of `position`.
    """
    variables: list[Any] = []
    structural_walk(position, ((tirx.Var, variables.append),))

    def varies(expr: Expr) -> bool:
        def visit(variable: Any) -> Any:
            return tvm_ffi.VisitInterrupt(variable) if variable in variables else None

        return structural_walk(expr, ((tirx.Var, visit),)) is not None

    def on_division(division: Any) -> Any:
        dtype = str(division.ty.dtype)
        if dtype != "float32" or varies(division.b):
            return division
        return division.a * (tirx.const(1, dtype) / division.b)

    return structural_map(value, ((tirx.Div, on_division),))


def _overwritable(fused: Fused, rows: RowReduction, buffers: list[tirx.Buffer]) -> tuple[int, ...]:
    """Positions of inputs whose memory the output may reuse: each element is read before its store."""
    writers = [nest for nest in rows.nests if not nest.reduced and not (rows.own_row and nest is rows.kept)]
    first = rows.nests.index(writers[0])
    shape, bits = list(rows.output.buffer.shape), _bits(rows.output.buffer)
    refused: list[Any] = []
    for number, nest in enumerate(rows.nests):
        axis = _last_axis(nest, rows.lead, rows.length, fused.ranges)
        own_vars = [*(other.var for other in nest.axes[: len(rows.lead)]), axis.var]
        stop = {
            buffer: _as_it_is(buffer)
            for buffer in [*fused.params, *(row_nest.buffer for row_nest in rows.nests)]
        }

        def visit(read: TensorLoad, own: list[Any] = own_vars, late: bool = number > first) -> None:
            same_element = len(read.indices) == len(own) and all(
                a.same_as(b) for a, b in zip(read.indices, own, strict=True)
            )
            if late or not same_element:
                refused.append(read.source)

        bound = {other.var: other.var for other in [*nest.axes, *nest.reduced]}
        source = term_of(nest) if nest.reduced else nest
        stop.pop(nest.buffer, None)
        structural_walk(fused.value(source, bound, stop), ((TensorLoad, visit),))
    return tuple(
        position
        for position, buffer in enumerate(buffers[:-1])
        if fused.ranges.same_shape(list(buffer.shape), shape)
        and _bits(buffer) == bits
        and not any(buffer.same_as(other) for other in refused)
    )


def _as_it_is(buffer: tirx.Buffer) -> Any:
    """A load function that reads `buffer` itself, for `Fused.value`."""
    return lambda indices: tirx.BufferLoad(buffer, indices)


def _bits(buffer: tirx.Buffer) -> int:
    return int(tvm.DataType(str(buffer.dtype)).bits)


def make(fused: Fused, rows: RowReduction, machine: Machine) -> KernelAndBuffers:
    """Make the kernel of a whole group; return it with the buffers of its parameters (the output last)."""
    count, greatest = fused.ranges.product(rows.lead), fused.ranges.greatest
    greatest_count, length = greatest(count), greatest(rows.length)
    tasks = count if machine.parallel and greatest_count > 1 and greatest_count * length >= SMALL else None
    if (
        rows.own_row
        and rows.kept
        and tasks is not None
        and length * _bits(rows.kept.buffer) // 8 >= STACK_BYTES
    ):
        rows = replace_fields(rows, nests=[nest for nest in rows.nests if nest is not rows.kept], kept=None)
    stored = [*fused.params, *(nest.buffer for nest in rows.nests)]
    inputs: list[Any] = []
    for nest in rows.nests:
        inputs += [b for b in fused.inputs(nest, stored) if b in fused.params and b not in inputs]
    output = rows.output.buffer
    buffers_read = [*inputs, output]
    lanes = min(
        machine.lanes(str(buffer.dtype)) for buffer in [*buffers_read, *(n.buffer for n in rows.nests)]
    )

    def body(buffers: list[tirx.Buffer], begin: Expr, end: Expr) -> None:
        memory = registers([length], str(rows.kept.buffer.dtype)) if rows.own_row and rows.kept else None
        with tasks_of(count, tasks is not None, begin, end) as task:
            lead = [bind(index) for index in reversed(unravel(task, rows.lead))][::-1]
            row = _Row(fused, rows, dict(zip(buffers_read, buffers, strict=True)), lead, memory)
            for nest in rows.nests:
                if nest.reduced:
                    row.reduce(nest, lanes)
                else:
                    row.elementwise(nest, lanes)

    in_place = _overwritable(fused, rows, buffers_read)
    arguments = [argument(buffer, fused.tables) for buffer in buffers_read]
    func = define(arguments, tasks, body, bool(in_place), fused.ranges)
    return Kernel(func, tasks, {}, "rows", in_place, ranges=fused.ranges), buffers_read
