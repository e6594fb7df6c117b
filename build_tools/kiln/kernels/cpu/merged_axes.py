"""Adjacent axes of a nest that every tensor steps through as through one axis, merged into one.

Vectors along a short last axis leave a rest in each row, and tiles of a short axis are mostly edge: a
transpose of blocks of 14 x 3 elements is one of rows of 42. Two axes are one if, in memory, a step along the
outer is as long as the whole inner axis, for the output and for everything that is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from typing import Any

import tvm
from tvm import sym, tirx
from tvm.ir import TensorLoad

from kiln.callbacks import structural_map
from kiln.tir.builder import Expr
from kiln.tir.fused import Nest
from kiln.tir.inline import Expanded, guarded, loads
from kiln.tir.symbols import extent, int64, is_dynamic, variables

# From so many vectors on, the rest of a row does not count.
_LONG = 16


@dataclass(frozen=True)
class Strided:
    """A position in memory that is linear in the axes of a nest: a stride for each axis, in order."""

    strides: tuple[int, ...]
    start: int


def strided(indices: Sequence[Expr], shape: Sequence[Any], axes: Sequence[Any]) -> Strided | None:
    """The position of the element at `indices` of a dense tensor of `shape`; None where it is not linear."""
    position: Expr = int64(0)
    for index, size in zip(indices, shape, strict=True):
        if is_dynamic(extent(size)):
            return None
        position = position * int64(extent(size)) + index
    coefficients = sym.detect_linear_equation(sym.Analyzer().simplify(position), [axis.var for axis in axes])
    factors = [extent(factor) for factor in coefficients]
    if len(factors) != len(axes) + 1 or any(map(is_dynamic, factors)):
        return None
    *strides, start = (int(factor) for factor in factors)
    return Strided(tuple(strides), start)


def positions(nest: Nest, reads: Sequence[Any]) -> list[Strided] | None:
    """The positions at which `nest` stores and reads each of `reads`; None where one is not linear."""
    if nest.reduced or any(map(is_dynamic, nest.extents)):
        return None
    positions_found = []
    for indices, buffer in [(nest.store, nest.buffer), *((read.indices, read.source) for read in reads)]:
        position = strided(indices, buffer.shape, nest.axes)
        if position is None:
            return None
        positions_found.append(position)
    return positions_found


def only_loads(value: Expr) -> bool:
    """Whether axes occur in `value` only as indices of loads, and no load is under a condition."""
    if any(loads(branch) for branch in guarded(value)):
        return False
    blank = structural_map(value, ((TensorLoad, lambda read: tirx.const(0, str(read.source.dtype))),))
    return not variables(blank)


def is_mergeable(expanded: Expanded, tables: Mapping[Any, Any]) -> bool:
    """Whether axes may be merged: they occur in indices alone, and no constant of `tables` is read."""
    stored = all(read.source not in tables for read in expanded.reads())
    return not expanded.steps and stored and only_loads(expanded.value)


def with_longer_rows(nest: Nest, expanded: Expanded, tables: Mapping[Any, Any], lanes: int) -> Nest:
    """`nest` with merged axes if vectors along its last axis leave a rest that counts; the first axis stays.

    `expanded`: the expression of an element. `tables`: see `is_mergeable`.
    """
    wide = [size for size in nest.extents if is_dynamic(size) or size != 1]
    short = wide and not is_dynamic(wide[-1]) and wide[-1] % lanes and wide[-1] < _LONG * lanes
    if not short or not is_mergeable(expanded, tables):
        return nest
    expanded_nest = replace_fields(nest, value=expanded.value)
    fewer = merged(expanded_nest, False)
    return nest if fewer is expanded_nest else fewer


def merged(nest: Nest, all_axes: bool) -> Nest:
    """`nest` with its axes merged; the nest itself where no axes can be, or where a position is not linear.

    Its value is an expression of tensors in memory, whose loads contain all axes. `all_axes`: whether the
    first axis longer than 1 may be merged, too; otherwise it stays for threads to share. The last index of a
    load, and of the store, becomes the whole position in memory, a plain sum: if old axes were quotients
    and remainders of the new one, LLVM would not see that elements are adjacent.
    """
    strided_positions = positions(nest, loads(nest.value))
    if strided_positions is None:
        return nest
    groups: list[list[int]] = []
    for number in [number for number, size in enumerate(nest.extents) if size != 1]:
        length = nest.extents[number]
        joins = groups and (all_axes or len(groups) > 1)
        if joins and all(
            strided_position.strides[groups[-1][-1]] == strided_position.strides[number] * length
            for strided_position in strided_positions
        ):
            groups[-1].append(number)
        else:
            groups.append([number])
    if all(len(group) == 1 for group in groups):
        return nest
    axes = [_axis([nest.axes[number] for number in group]) for group in groups]
    innermost = [group[-1] for group in groups]

    def place(indices: Sequence[Expr], shape: Sequence[Any]) -> list[Expr]:
        linear = strided(indices, shape, nest.axes)
        assert linear is not None
        position = int64(linear.start)
        for axis, number in zip(axes, innermost, strict=True):
            if linear.strides[number]:
                position = position + axis.var * int64(linear.strides[number])
        return [*(int64(0) for _ in indices[1:]), position]

    def on_load(read: Any) -> Any:
        if not read.indices:
            return read
        return tirx.BufferLoad(read.source, place(read.indices, read.source.shape))

    value = structural_map(nest.value, ((TensorLoad, on_load),))
    return replace_fields(nest, axes=axes, store=place(nest.store, nest.buffer.shape), value=value)


def _axis(axes: Sequence[Any]) -> Any:
    """One axis in place of `axes`."""
    if len(axes) == 1:
        return axes[0]
    dtype = str(axes[0].var.ty.dtype)
    count = math.prod(int(axis.dom.extent) for axis in axes)
    domain = tvm.ir.Range(tirx.const(0, dtype), tirx.const(count, dtype))
    return tirx.IterVar(domain, tirx.Var("merged", dtype), tirx.IterVar.DataPar)
