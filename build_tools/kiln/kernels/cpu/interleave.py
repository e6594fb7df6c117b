"""Interleaved stores: outputs whose last axis is shorter than a vector (RGB images, stride phases).

A vector along an axis of 3 or 2 elements would be mostly empty. Here the last two axes are treated as one: a
block of `lanes` steps along the axis before the last is lanes * C adjacent elements, or C vectors. Tensors
that are read at positions linear in both axes are loaded in vectors of adjacent elements too, and shuffles
bring the elements into the order of the output: three loads, not 24, for eight pixels of three planes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import sym, tirx
from tvm.ir import Call, Expr, TensorLoad

from kiln.callbacks import structural_map, structural_walk
from kiln.extents import Extent, extent
from kiln.tir.builder import (
    Argument,
    Kernel,
    KernelAndBuffers,
    Machine,
    Sized,
    bind,
    chunks,
    define,
    load,
    registers,
    serial,
    store,
    unravel,
    vector,
)
from kiln.tir.fused import Fused, Nest, replace
from kiln.tir.op_names import op_name
from kiln.tir.symbols import SymbolRanges, int64, is_dynamic, variables
from kiln.tir.tiled_loops import blocks, tasks_of
from kiln.tir.vector_expr import i32, ramp

# Fewest elements of a last axis that make vectors of their own: with 12 of them on AVX-512, each vector of
# the output comes from up to 12 others.
_FEWEST_ALONE = 8
# Most reads of one nest that are reordered: each needs as many registers as the output's block.
_MOST_READS = 4


def flat_position(indices: Sequence[Expr], shape: Sequence[Extent]) -> Expr:
    """The position in memory of the element at `indices` of a dense tensor of `shape`."""
    position: Expr = int64(0)
    for index, size in zip(indices, shape, strict=True):
        position = position * int64(extent(size)) + index
    return position


def linear_factors(position: Expr, axes: Sequence[Any], ranges: SymbolRanges) -> list[Extent] | None:
    """[coefficient of each axis, constant] of `position`, or None where it is not linear in `axes`.

    `axes`: the variables of the axes.
    """
    coefficients = sym.detect_linear_equation(sym.Analyzer().simplify(position), list(axes))
    if len(coefficients) != len(axes) + 1:
        return None
    return [ranges.simplify(extent(coefficient)) for coefficient in coefficients]


def windows(positions: Sequence[int], lanes: int) -> list[tuple[int, int]]:
    """(first, width) of vectors that cover `positions`, within the first and the last position."""
    vectors: list[tuple[int, int]] = []
    remaining = sorted(set(positions))
    while remaining:
        near = [position for position in remaining if position < remaining[0] + lanes]
        for offset, width in chunks(near[-1] - remaining[0] + 1, lanes):
            first = remaining[0] + offset
            if any(first <= position < first + width for position in near):
                vectors.append((first, width))
        remaining = remaining[len(near) :]
    return vectors


@dataclass(frozen=True)
class Interleaving:
    """A nest whose last axis `inner`, of `count` elements, is interleaved with `outer`, the axis before."""

    nest: Nest
    outer: Any
    inner: Any
    count: int
    lanes: int
    ranges: SymbolRanges

    def block(self, fused: Fused, buffers: Mapping[Any, Any], bound: Mapping[Any, Expr], first: Expr) -> None:
        """Emit the elements of `lanes` steps of the outer axis from `first`; `buffers` are flat memory."""
        stop = {
            buffer: lambda where, buffer=buffer: tirx.BufferLoad(buffer, where)
            for buffer in buffers
            if not buffer.same_as(self.nest.buffer)
        }
        axis_vars = {self.outer.var: self.outer.var, self.inner.var: self.inner.var}
        value = fused.value(self.nest, {**bound, **axis_vars}, stop)
        start = {self.outer.var: first, self.inner.var: int64(0)}
        ordered = [
            (read, self._ordered(read, factors, buffers[read.source], start))
            for read in _reads(value)
            if (factors := self._factors(read)) is not None
        ]
        output = buffers[self.nest.buffer]
        offset = bind(output.place([replace(index, {**bound, **start}, {}) for index in self.nest.store]))
        for number in range(self.count):
            with vector(self.lanes) as lane:
                at = int64(number * self.lanes) + lane
                step, inner = tirx.floordiv(at, int64(self.count)), tirx.floormod(at, int64(self.count))

                def on_load(read: TensorLoad, index: Expr = at) -> Any:
                    ready = next((r for other, r in ordered if tvm_ffi.structural_equal(other, read)), None)
                    if ready is None:
                        return load(buffers[read.source], list(read.indices))
                    return load(ready, [index])

                element = structural_map(value, ((TensorLoad, on_load),))
                values_of_axes = {self.outer.var: first + step, self.inner.var: inner}
                store(output.memory, [offset + at], replace(element, values_of_axes, {}))

    def element(self, fused: Fused, buffers: Mapping[Any, Any], bound: Mapping[Any, Expr]) -> None:
        """Emit the single element at the axes `bound`."""
        stop = {
            buffer: lambda where, target=target: load(target, where)
            for buffer, target in buffers.items()
            if not buffer.same_as(self.nest.buffer)
        }
        indices = [replace(index, bound, {}) for index in self.nest.store]
        store(buffers[self.nest.buffer], indices, fused.value(self.nest, bound, stop))

    def _factors(self, read: TensorLoad) -> list[Extent] | None:
        """[stride along outer, stride along inner, constant] of `read`; None where it cannot be reordered."""
        position = flat_position(read.indices, read.source.shape)
        factors = linear_factors(position, [self.outer.var, self.inner.var], self.ranges)
        if factors is None or str(read.source.dtype) == "bool" or is_dynamic(factors[0]):
            return None
        if not is_dynamic(factors[0]) and not is_dynamic(factors[1]) and not factors[0] and not factors[1]:
            return None  # a broadcast of one element
        return factors

    def _ordered(
        self, read: TensorLoad, factors: list[Extent], buffer: tirx.Buffer, start: dict[Any, Expr]
    ) -> Any:
        """Emit the loads of `read` for one block; return a register with them in the order of the output."""
        dtype = str(read.source.dtype)
        base = bind(replace(flat_position(read.indices, read.source.shape), start, {}))
        step, inner_step = factors[:2]
        # By group, the offset from `base`, which may be dynamic. Vectors never span two groups.
        groups: dict[int, Expr] = {}
        where: list[tuple[int, int]] = []
        for position in range(self.count * self.lanes):
            outer, inner = divmod(position, self.count)
            group = inner if is_dynamic(inner_step) else 0
            groups.setdefault(group, int64(group) * inner_step if is_dynamic(inner_step) else int64(0))
            where.append((group, outer * step + (0 if is_dynamic(inner_step) else inner * inner_step)))
        # (group, position) → the register that holds the element, and the lane.
        pieces: dict[tuple[int, int], tuple[Any, int]] = {}
        for group, more in groups.items():
            for offset, width in windows([p for g, p in where if g == group], self.lanes):
                piece = registers([width], dtype)
                with vector(width) as lane:
                    store(piece, [lane], load(buffer.memory, [base + more + int64(offset) + lane]))
                for index in range(width):
                    pieces[(group, offset + index)] = piece, index
        result = registers([self.count * self.lanes], dtype)
        for number in range(self.count):
            elements = [pieces[key] for key in where[number * self.lanes :][: self.lanes]]
            store(result, [ramp(int64(number * self.lanes), self.lanes)], _picked(elements))
        return result


def _picked(elements: Sequence[tuple[Any, int]]) -> Expr:
    """A vector of (register, lane) elements, by shuffles of two registers at a time, which CPUs have."""
    lanes = len(elements)
    sources: list[Any] = []
    for register, _ in elements:
        if not any(register.same_as(other) for other in sources):
            sources.append(register)

    def load_all(register: Any) -> tuple[Expr, int]:
        width = int(register.shape[0])
        return (load(register, [ramp(int64(0), width) if width > 1 else int64(0)]), width)

    vector_so_far: Expr | None = None
    for source in sources:
        value, width = load_all(source)
        picks = [
            (index if register.same_as(source) else None)
            for register, index in elements
        ]  # fmt: skip
        if vector_so_far is None:
            several = [value] * max(1, lanes // width)  # at least as many lanes as the result has
            vector_so_far = tirx.Shuffle(several, [i32(0 if pick is None else pick) for pick in picks])
            continue
        order = [lane if pick is None else lanes + pick for lane, pick in enumerate(picks)]
        vector_so_far = tirx.Shuffle([vector_so_far, value], [i32(pick) for pick in order])
    assert vector_so_far is not None
    return vector_so_far


def _reads(value: Expr) -> list[Any]:
    """The loads in `value`, each once."""
    reads: list[Any] = []

    def visit(read: Any) -> None:
        if not any(tvm_ffi.structural_equal(read, other) for other in reads):
            reads.append(read)

    structural_walk(value, ((TensorLoad, visit),))
    return reads


def read_interleaving(nest: Nest, value: Expr, lanes: int, ranges: SymbolRanges) -> Interleaving | None:
    """How to interleave the last axes of `nest`, which stores `value`; None where this does not apply."""
    wide = [axis for axis in nest.axes if is_dynamic(extent(axis.dom.extent)) or extent(axis.dom.extent) != 1]
    if nest.reduced or len(wide) < 2 or str(nest.buffer.dtype) == "bool":
        return None
    outer, inner = wide[-2:]
    count, steps = extent(inner.dom.extent), extent(outer.dom.extent)
    if is_dynamic(count) or count >= min(lanes, _FEWEST_ALONE) or (not is_dynamic(steps) and steps < lanes):
        return None
    stored = linear_factors(flat_position(nest.store, nest.buffer.shape), [outer.var, inner.var], ranges)
    if stored is None or [factor for factor in stored[:2] if is_dynamic(factor)] or stored[:2] != [count, 1]:
        return None
    interleaving = Interleaving(nest, outer, inner, count, lanes, ranges)
    reads = _reads(value)
    guarded = _guarded(value)
    nested = any(_reads(index) for read in reads for index in read.indices)
    moved = [read for read in reads if _depends(read, outer, inner)]
    if guarded or nested or len(moved) > _MOST_READS:
        return None
    return None if any(interleaving._factors(read) is None for read in moved) else interleaving


def _guarded(value: Expr) -> bool:
    """Whether `value` has conditional parts, whose loads may be out of bounds if evaluated always."""

    def visit(call: Any) -> Any:
        return tvm_ffi.VisitInterrupt(call) if op_name(call) == "if_then_else" else None

    return structural_walk(value, ((Call, visit),)) is not None


def _depends(read: TensorLoad, *axes: Any) -> bool:
    """Whether the indices of `read` contain one of `axes`."""
    used = [variable for index in read.indices for variable in variables(index)]
    return any(axis.var.same_as(variable) for axis in axes for variable in used)


def make(
    interleaving: Interleaving, fused: Fused, stored: Sequence[Any], machine: Machine, steps: int
) -> KernelAndBuffers:
    """Make the kernel of an interleaved nest; return it with the buffers of its parameters (the output last).

    `steps`: approximate number of vector operations per element.
    """
    nest, outer, inner = interleaving.nest, interleaving.outer, interleaving.inner
    lanes, ranges = interleaving.lanes, fused.ranges
    inputs = fused.inputs(nest, stored)
    every = [*inputs, nest.buffer]
    before = [axis for axis in nest.axes if axis is not outer and axis is not inner]
    sizes = [extent(axis.dom.extent) for axis in before]
    length, count = extent(outer.dom.extent), ranges.product(sizes)
    work = ranges.greatest(ranges.product(nest.extents))
    tasks = count if ranges.greatest(count) > 1 and machine.shares(steps * work // lanes) else None

    def body(buffers: list[tirx.Buffer], begin: Expr, end: Expr) -> None:
        data = [item.memory if isinstance(item, Sized) else item for item in buffers]
        shapes = [[extent(size) for size in buffer.shape] for buffer in every]
        flat = [Sized(item, shape) for item, shape in zip(data, shapes, strict=True)]
        memory = dict(zip(every, flat, strict=True))
        with tasks_of(count, tasks is not None, begin, end) as task:
            indices = reversed(list(zip(before, unravel(task, sizes), strict=True)))
            bound: dict[Any, Expr] = {axis.var: bind(index) for axis, index in indices}

            def visit(first: Expr, width: int) -> None:
                if width == lanes:
                    interleaving.block(fused, memory, bound, first)
                    return
                with serial(width) as step, serial(interleaving.count) as number:
                    axes = {**bound, outer.var: first + step, inner.var: number}
                    interleaving.element(fused, memory, axes)

            blocks(length, lanes, visit)

    arguments = [
        Argument(buffer.name, [ranges.product(list(buffer.shape))], str(buffer.dtype)) for buffer in every
    ]
    in_place = fused.same_index(nest, stored, inputs)
    func = define(arguments, tasks, body, bool(in_place), ranges)
    return Kernel(func, tasks, {}, "loops", in_place, ranges=ranges), every
