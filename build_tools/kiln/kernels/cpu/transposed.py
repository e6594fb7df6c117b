"""Transposes: nests that read a tensor contiguously along another axis than the one along which they write.

Computation  Any elementwise expression of tensors whose positions are linear in the axes of the nest.
Schedule     Square blocks of the two axes are loaded as vectors, transposed in registers, and stored as
             vectors after the rest of the expression (tir/transpose.py). A line of blocks goes over whole
             cache lines of the tensor that is read. Where a size is no multiple of the block, the last block
             begins earlier and computes some elements again. Tasks: the other axes, and the lines of blocks.
             Where one of the two axes is dynamic and turns out shorter than a block, element by element.
Applies      Sizes of at least a block in both axes, a dynamic one at its greatest; nests without reductions
             and conditions.
Accuracy     That of the expression.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, TensorLoad
from tvm.tirx.script.builder import ir as builder

from kiln.callbacks import structural_map
from kiln.extents import Extent
from kiln.kernels.cpu.merged_axes import Strided, is_mergeable, merged, positions
from kiln.tir.builder import (
    Argument,
    Kernel,
    KernelAndBuffers,
    Machine,
    Sized,
    bind,
    define,
    load,
    serial,
    store,
    unravel,
    vector,
)
from kiln.tir.fused import Fused, Nest
from kiln.tir.inline import Expanded, loads
from kiln.tir.symbols import SymbolRanges, ceil_div, int64, is_dynamic
from kiln.tir.tiled_loops import tasks_of
from kiln.tir.transpose import transposed_rows

# Bytes of a tensor that a block reads together: a cache line.
_LINE = 64
# Widest block, in elements: a register may have 64 of 8 bits, and a block of these would need 64 registers.
_WIDEST = 16
# ISAs that shuffle two vectors in one instruction.
_SHUFFLING = ("sse4", "avx2", "avx512", "neon", "simd128")
_NARROWEST = 4


@dataclass(frozen=True)
class Transposition:
    """A nest in blocks of `lanes` elements along its last axis and along the axis number `outer`.

    `reads`: the loads of its value, with their positions; `stored`: that of the output. `ranges`: of the
    variables in its sizes.
    """

    nest: Nest
    outer: int
    lanes: int
    reads: Sequence[tuple[Any, Strided]]
    stored: Strided
    ranges: SymbolRanges

    @property
    def span(self) -> int:
        """Elements along the axis `outer` of a line of blocks; of a dynamic axis, the most."""
        bits = max(
            int(tvm.DataType(str(read.source.dtype)).bits)
            for read, position in self.reads
            if _turns(position, self.outer)
        )
        elements = max(self.lanes, _LINE * 8 // bits)
        return elements if self.ranges.greatest(self.nest.extents[self.outer]) >= elements else self.lanes

    @property
    def sizes(self) -> list[Extent]:
        """The extents of all axes but the last; that of `outer` counts lines of blocks."""
        extents = self.nest.extents[:-1]
        extents[self.outer] = ceil_div(extents[self.outer], self.span)
        return extents

    @property
    def overlaps(self) -> bool:
        """Whether some elements may be computed twice."""
        outer, length = self.nest.extents[self.outer], self.nest.extents[-1]
        return is_dynamic(outer) or is_dynamic(length) or bool(outer % self.span or length % self.lanes)

    def line(self, memory: Mapping[Any, Any], indices: list[Expr]) -> None:
        """Emit a line of blocks: all elements along the last axis; `indices` of the others, in `sizes`."""
        axes = (self.nest.extents[self.outer], self.nest.extents[-1])
        short = [size < int64(self.lanes) for size in axes if self.ranges.least(size) < self.lanes]
        if not short:
            self._blocks(memory, indices)
            return
        with builder.If(tirx.any(*short)):
            with builder.Then():
                self._elements(memory, indices)
            with builder.Else():
                self._blocks(memory, indices)

    def _blocks(self, memory: Mapping[Any, Any], indices: list[Expr]) -> None:
        """Emit a line of blocks whose axes are both at least as long as a block."""
        length, outer, lanes = self.nest.extents[-1], self.nest.extents[self.outer], self.lanes
        indices = list(indices)
        first = indices[self.outer] * int64(self.span)
        along: Extent = self.span // lanes
        if is_dynamic(outer):
            along = tirx.min(int64(along), ceil_div(outer - first, lanes)) if along > 1 else along
        elif outer % self.span:
            first = bind(tirx.min(first, int64(outer - self.span)))
        with serial(ceil_div(length, lanes)) as block:
            inner = _at_most(block * int64(lanes), length, lanes)
            with serial(along) as block_index:
                point = [*indices, inner]
                start = first + block_index * int64(lanes)
                point[self.outer] = _at_most(start, outer, lanes) if is_dynamic(outer) else start
                self._block(memory, point)

    def _block(self, memory: Mapping[Any, Any], indices: list[Expr]) -> None:
        """Emit the block from `indices`."""
        starts = [bind(_offset(position, indices)) for _, position in self.reads]
        offset = bind(_offset(self.stored, indices))
        turned = {
            number: transposed_rows(memory[read.source], start, position.strides[-1], self.lanes)
            for number, ((read, position), start) in enumerate(zip(self.reads, starts, strict=True))
            if _turns(position, self.outer)
        }
        for row in range(self.lanes):
            with vector(self.lanes) as lane:

                def of_lane(number: int, row: int = row, lane: Expr = lane) -> Any:
                    if number in turned:
                        return load(turned[number][row], [lane])
                    read, position = self.reads[number]
                    more = int64(position.strides[self.outer]) * int64(row)
                    more = more + lane * int64(position.strides[-1])
                    return load(memory[read.source], [starts[number] + more])

                more = int64(self.stored.strides[self.outer]) * int64(row) + lane
                store(memory[self.nest.buffer], [offset + more], self._value(of_lane))

    def _elements(self, memory: Mapping[Any, Any], indices: list[Expr]) -> None:
        """Emit the elements of a line of blocks one by one."""
        outer = self.nest.extents[self.outer]
        first = indices[self.outer] * int64(self.span)
        with (
            serial(tirx.min(int64(self.span), int64(outer) - first)) as more,
            serial(self.nest.extents[-1]) as i,
        ):
            point = [*indices, i]
            point[self.outer] = first + more

            def element(number: int) -> Any:
                read, position = self.reads[number]
                return load(memory[read.source], [_offset(position, point)])

            store(memory[self.nest.buffer], [_offset(self.stored, point)], self._value(element))

    def _value(self, element: Callable[[int], Any]) -> Any:
        """The expression of an element, with the value `element(n)` in place of read number n of `reads`."""

        def on_load(read: Any) -> Any:
            return element(_number(self.reads, read))

        return structural_map(self.nest.value, ((TensorLoad, on_load),))


def _number(reads: Sequence[tuple[Any, Strided]], read: Any) -> int:
    """The position of the load `read` among `reads`."""
    return next(n for n, (other, _) in enumerate(reads) if tvm_ffi.structural_equal(other, read))


def _turns(position: Strided, outer: int) -> bool:
    """Whether a read at `position` is contiguous along the axis number `outer`, not along the last one."""
    along, across = position.strides[outer], position.strides[-1]
    return not is_dynamic(along) and along == 1 and _is_across(across)


def _is_across(stride: Extent) -> bool:
    """Whether elements along an axis with `stride` may be further apart than one element."""
    return is_dynamic(stride) or stride > 1


def _at_most(first: Expr, size: Extent, lanes: int) -> Expr:
    """`first`, or the first of the last `lanes` elements of an axis of `size` elements if that is less."""
    if not is_dynamic(size) and size % lanes == 0:
        return bind(first)
    return bind(tirx.min(first, int64(size) - int64(lanes)))


def _offset(position: Strided, indices: Sequence[Expr]) -> Expr:
    offset: Expr = int64(position.start)
    for stride, index in zip(position.strides, indices, strict=True):
        offset = offset + index * int64(stride)
    return offset


def read_transposition(
    nest: Nest, expanded: Expanded, fused: Fused, lanes: int, machine: Machine
) -> Transposition | None:
    """How to compute `nest` in transposed blocks of at most `lanes` elements; None where this does not apply.

    `expanded`: the expression of an element. `fused`: what the nest belongs to.
    """
    ranges = fused.ranges
    if machine.isa not in _SHUFFLING or not is_mergeable(expanded, fused.tables):
        return None
    nest = merged(replace(nest, value=expanded.value), True, ranges)
    reads: list[Any] = []
    for read in loads(nest.value):
        if not any(tvm_ffi.structural_equal(read, other) for other in reads):
            reads.append(read)
    if "bool" in (str(buffer.dtype) for buffer in [nest.buffer, *(read.source for read in reads)]):
        return None
    positions_found = positions(nest, reads, ranges) if len(nest.axes) > 1 else None
    if positions_found is None or is_dynamic(positions_found[0].strides[-1]):
        return None
    stored, *read_positions = positions_found
    turned = [position for position in read_positions if _is_across(position.strides[-1])]
    if stored.strides[-1] != 1 or len(turned) != 1:  # a block of each needs as many registers as it has rows
        return None
    lanes = min(lanes, _WIDEST)
    while lanes >= _NARROWEST:  # blocks of fewer elements where an axis is shorter than a vector
        for outer in range(len(nest.axes) - 1):
            shorter = min(ranges.greatest(nest.extents[outer]), ranges.greatest(nest.extents[-1]))
            if _turns(turned[0], outer) and shorter >= lanes:
                of_reads = list(zip(reads, read_positions, strict=True))
                return Transposition(nest, outer, lanes, of_reads, stored, ranges)
        lanes //= 2
    return None


def make(
    transposition: Transposition,
    in_place: tuple[int, ...],
    inputs: Sequence[Any],
    machine: Machine,
    steps: int,
) -> KernelAndBuffers:
    """Make the kernel of a transposition; return it with the buffers of its parameters (the output last).

    `inputs`: the buffers that it reads; `in_place`: those that the output may overwrite if each element is
    computed once. `steps`: approximate number of vector operations per element.
    """
    nest, sizes, ranges = transposition.nest, transposition.sizes, transposition.ranges
    every = [*inputs, nest.buffer]
    count = ranges.product(sizes)
    work = ranges.greatest(ranges.product(nest.extents))
    shared = ranges.greatest(count) > 1 and machine.shares(steps * work // transposition.lanes)
    tasks = count if shared else None
    in_place = () if transposition.overlaps else in_place

    def body(buffers: list[tirx.Buffer], begin: Expr, end: Expr) -> None:
        data = [item.memory if isinstance(item, Sized) else item for item in buffers]
        memory = dict(zip(every, data, strict=True))
        with tasks_of(count, shared, begin, end) as task:
            transposition.line(memory, [bind(index) for index in unravel(task, sizes)])

    arguments = [
        Argument(tensor.name, [ranges.product(list(tensor.shape))], str(tensor.dtype)) for tensor in every
    ]
    func = define(arguments, tasks, body, bool(in_place), ranges)
    # LLVM extends sums of 32 bits to 64, and LoopStrengthReduce of LLVM 22 then repeats the divisions for
    # each vector (tests/conformance/test_dynamic_transposes.py).
    wide = any(is_dynamic(size) for size in (*sizes, *nest.extents))
    return Kernel(func, tasks, {}, "loops", in_place, ranges=ranges, wide_positions=wide), every
