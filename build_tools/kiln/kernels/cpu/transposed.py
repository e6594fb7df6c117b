"""Transposes: nests that read a tensor contiguously along another axis than the one along which they write.

Computation  Any elementwise expression of tensors whose positions are linear in the axes of the nest.
Schedule     Square blocks of the two axes are loaded as vectors, transposed in registers, and stored as
             vectors after the rest of the expression (tir/transpose.py). A line of blocks goes over whole
             cache lines of the tensor that is read. Where a size is no multiple of the block, the last block
             begins earlier and computes some elements again. Tasks: the other axes, and the lines of blocks.
Applies      Static sizes of at least a block in both axes; nests without reductions and conditions.
Accuracy     That of the expression.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad

from kiln.callbacks import structural_map
from kiln.config.sizes import ceil_div
from kiln.kernels.cpu.merged_axes import Strided, is_mergeable, merged, positions
from kiln.tir.builder import (
    Argument,
    Expr,
    Kernel,
    Machine,
    bind,
    define,
    load,
    serial,
    store,
    unravel,
    vector,
)
from kiln.tir.fused import Nest
from kiln.tir.inline import Expanded, loads
from kiln.tir.symbols import int64
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

    `reads`: the loads of its value, with their positions; `stored`: that of the output.
    """

    nest: Nest
    outer: int
    lanes: int
    reads: Sequence[tuple[Any, Strided]]
    stored: Strided

    @property
    def span(self) -> int:
        """Elements along the axis `outer` of a line of blocks."""
        bits = max(
            int(tvm.DataType(str(read.source.dtype)).bits)
            for read, position in self.reads
            if self.turns(position)
        )
        elements = max(self.lanes, _LINE * 8 // bits)
        return elements if self.nest.extents[self.outer] >= elements else self.lanes

    @property
    def sizes(self) -> list[int]:
        """The extents of all axes but the last; that of `outer` counts lines of blocks."""
        extents = [int(size) for size in self.nest.extents[:-1]]
        extents[self.outer] = ceil_div(extents[self.outer], self.span)
        return extents

    @property
    def overlaps(self) -> bool:
        """Whether some elements are computed twice."""
        extents = self.nest.extents
        return bool(extents[self.outer] % self.span or extents[-1] % self.lanes)

    def turns(self, position: Strided) -> bool:
        """Whether a read at `position` is transposed."""
        return position.strides[self.outer] == 1 and position.strides[-1] > 1

    def line(self, memory: Mapping[Any, Any], indices: list[Expr]) -> None:
        """Emit a line of blocks: all elements along the last axis; `indices` of the others, in `sizes`."""
        length, outer = int(self.nest.extents[-1]), int(self.nest.extents[self.outer])
        indices = list(indices)
        first = indices[self.outer] * int64(self.span)
        indices[self.outer] = bind(tirx.min(first, int64(outer - self.span)) if outer % self.span else first)
        with serial(ceil_div(length, self.lanes)) as block:
            inner = block * int64(self.lanes)
            inner = bind(tirx.min(inner, int64(length - self.lanes)) if length % self.lanes else inner)
            with serial(self.span // self.lanes) as block_index:
                point = [*indices, inner]
                point[self.outer] = point[self.outer] + block_index * int64(self.lanes)
                self._block(memory, point)

    def _block(self, memory: Mapping[Any, Any], indices: list[Expr]) -> None:
        """Emit the block from `indices`."""
        starts = [bind(_offset(position, indices)) for _, position in self.reads]
        offset = bind(_offset(self.stored, indices))
        turned = {
            number: transposed_rows(memory[read.source], start, position.strides[-1], self.lanes)
            for number, ((read, position), start) in enumerate(zip(self.reads, starts, strict=True))
            if self.turns(position)
        }
        for row in range(self.lanes):
            with vector(self.lanes) as lane:

                def on_load(other_read: Any, row: int = row, lane: Expr = lane) -> Any:
                    number = next(
                        n for n, (r, _) in enumerate(self.reads) if tvm_ffi.structural_equal(r, other_read)
                    )
                    if number in turned:
                        return load(turned[number][row], [lane])
                    position = self.reads[number][1]
                    more = int64(position.strides[self.outer] * row) + lane * int64(position.strides[-1])
                    return load(memory[other_read.source], [starts[number] + more])

                value = structural_map(self.nest.value, ((TensorLoad, on_load),))
                store(
                    memory[self.nest.buffer],
                    [offset + int64(self.stored.strides[self.outer] * row) + lane],
                    value,
                )


def _offset(position: Strided, indices: Sequence[Expr]) -> Expr:
    offset: Expr = int64(position.start)
    for stride, index in zip(position.strides, indices, strict=True):
        offset = offset + index * int64(stride)
    return offset


def read_transposition(
    nest: Nest, expanded: Expanded, tables: Mapping[Any, Any], lanes: int, machine: Machine
) -> Transposition | None:
    """How to compute `nest` in transposed blocks of at most `lanes` elements; None where this does not apply.

    `expanded`: the expression of an element. `tables`: constants that are not stored as they are read.
    """
    if machine.isa not in _SHUFFLING or not is_mergeable(expanded, tables):
        return None
    nest = merged(replace(nest, value=expanded.value), True)
    reads: list[Any] = []
    for read in loads(nest.value):
        if not any(tvm_ffi.structural_equal(read, other) for other in reads):
            reads.append(read)
    if "bool" in (str(buffer.dtype) for buffer in [nest.buffer, *(read.source for read in reads)]):
        return None
    positions_found = positions(nest, reads) if len(nest.axes) > 1 else None
    if positions_found is None or positions_found[0].strides[-1] != 1:
        return None
    stored, *read_positions = positions_found
    turned = [position for position in read_positions if position.strides[-1] > 1]
    if len(turned) != 1:  # a block of each needs as many registers as it has rows
        return None
    lanes = min(lanes, _WIDEST)
    while lanes >= _NARROWEST:  # blocks of fewer elements where an axis is shorter than a vector
        for outer, stride in enumerate(turned[0].strides[:-1]):
            if stride == 1 and min(int(nest.extents[outer]), int(nest.extents[-1])) >= lanes:
                return Transposition(
                    nest, outer, lanes, list(zip(reads, read_positions, strict=True)), stored
                )
        lanes //= 2
    return None


def make(
    transposition: Transposition,
    in_place: tuple[int, ...],
    inputs: Sequence[Any],
    machine: Machine,
    steps: int,
) -> tuple[Kernel, list[Any]]:
    """Make the kernel of a transposition; return it with the buffers of its parameters (the output last).

    `inputs`: the buffers that it reads; `in_place`: those that the output may overwrite if each element is
    computed once. `steps`: approximate number of vector operations per element.
    """
    nest, sizes = transposition.nest, transposition.sizes
    every = [*inputs, nest.buffer]
    count = math.prod(sizes)
    work = math.prod(int(size) for size in nest.extents)
    tasks = count if count > 1 and machine.shares(steps * work // transposition.lanes) else None
    in_place = () if transposition.overlaps else in_place

    def body(buffers: list[Any], begin: Expr, end: Expr) -> None:
        memory = dict(zip(every, buffers, strict=True))
        with tasks_of(count, tasks is not None, begin, end) as task:
            transposition.line(memory, [bind(index) for index in unravel(task, sizes)])

    arguments = [
        Argument(nest_tensor.name, [math.prod(int(n) for n in nest_tensor.shape)], str(nest_tensor.dtype))
        for nest_tensor in every
    ]
    func = define(arguments, tasks, body, bool(in_place))
    return Kernel(func, tasks, {}, "loops", in_place), every
