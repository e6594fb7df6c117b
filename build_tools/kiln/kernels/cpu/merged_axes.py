"""Adjacent axes of a nest that every tensor steps through as through one axis, merged into one.

Vectors along a short last axis leave a rest in each row, and tiles of a short axis are mostly edge: a
transpose of blocks of 14 x 3 elements is one of rows of 42. Two axes are one if, in memory, a step along the
outer is as long as the whole inner axis, for the output and for everything that is read. Sizes may be
dynamic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Expr, TensorLoad

from kiln.callbacks import structural_map
from kiln.extents import Extent
from kiln.kernels.cpu.interleave import flat_position, linear_factors
from kiln.tir.fused import Nest
from kiln.tir.inline import Expanded, guarded, loads
from kiln.tir.symbols import SymbolRanges, int64, is_dynamic, variables

# From so many vectors on, the rest of a row does not count.
_LONG = 16
# Fewest tasks for threads to share, where the sizes that make their number are dynamic.
_TASKS = 8


@dataclass(frozen=True)
class Strided:
    """A position in memory that is linear in the axes of a nest: a stride for each axis, in order."""

    strides: tuple[Extent, ...]
    start: Extent


def strided(
    indices: Sequence[Expr], shape: Sequence[Extent], axes: Sequence[Any], ranges: SymbolRanges
) -> Strided | None:
    """The position of the element at `indices` of a dense tensor of `shape`; None where it is not linear.

    `ranges`: of the variables in `shape`. Strides depend on no axis, but may depend on these variables.
    """
    position, axis_variables = _in_64_bits(flat_position(indices, shape), axes)
    factors = linear_factors(position, axis_variables, ranges)
    if factors is None or not all(_is_size(factor, ranges) for factor in factors):
        return None
    *strides, start = factors
    return Strided(tuple(strides), start)


def _in_64_bits(position: Expr, axes: Sequence[Any]) -> tuple[Expr, list[Any]]:
    """`position` with a variable of 64 bits for each axis of 32, and the variables of all axes.

    Of a tensor inside a padded one, indices are casts of axes of 32 bits, in which no equation is linear.
    """
    wide = {axis.var: tirx.Var(axis.var.name, "int64") for axis in axes if str(axis.var.ty.dtype) != "int64"}

    def on_cast(cast: Any) -> Any:
        return wide.get(cast.value, cast) if str(cast.ty.dtype) == "int64" else cast

    return structural_map(position, ((tirx.Cast, on_cast),)), [wide.get(a.var, a.var) for a in axes]


def _is_size(factor: Extent, ranges: SymbolRanges) -> bool:
    """Whether `factor` is made of constants and of the variables in `ranges`, not of a tensor's elements."""
    if not is_dynamic(factor):
        return True
    return not loads(factor) and all(variable in ranges.ranges for variable in variables(factor))


def positions(nest: Nest, reads: Sequence[Any], ranges: SymbolRanges) -> list[Strided] | None:
    """The positions at which `nest` stores and reads each of `reads`; None where one is not linear."""
    if nest.reduced:
        return None
    positions_found = []
    for indices, buffer in [(nest.store, nest.buffer), *((read.indices, read.source) for read in reads)]:
        position = strided(indices, buffer.shape, nest.axes, ranges)
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


def with_longer_rows(
    nest: Nest, expanded: Expanded, tables: Mapping[Any, Any], lanes: int, ranges: SymbolRanges, shared: bool
) -> Nest:
    """`nest` with merged axes where that pays.

    Where threads share the first axes, these stay, and the others are merged if vectors along the last axis
    leave a rest that counts. Without threads all are: each axis that is left costs a division an element of
    the loops around it, and LLVM copies a longer row by one call.

    `expanded`: the expression of an element. `tables`: see `is_mergeable`. `ranges`: of the variables in
    sizes. `shared`: whether threads share the first axes.
    """
    wide = [size for size in nest.extents if is_dynamic(size) or size != 1]
    if not wide or not is_mergeable(expanded, tables):
        return nest
    whole = not is_dynamic(wide[-1]) and wide[-1] % lanes == 0
    if shared and (whole or ranges.least(wide[-1]) >= _LONG * lanes):
        return nest
    expanded_nest = replace_fields(nest, value=expanded.value)
    fewer = merged(expanded_nest, not shared, ranges)
    return nest if fewer is expanded_nest else fewer


def merged(nest: Nest, all_axes: bool, ranges: SymbolRanges) -> Nest:
    """`nest` with its axes merged; the nest itself where no axes can be, or where a position is not linear.

    Its value is an expression of tensors in memory, whose loads contain all axes. `all_axes`: whether the
    first axes may be merged, too; otherwise the first one longer than 1 stays for threads to share, and of
    dynamic axes as many as are sure to make enough tasks. `ranges`: of the variables in sizes. The last index
    of a load, and of the store, becomes the whole position in memory, a plain sum: if old axes were quotients
    and remainders of the new one, LLVM would not see that elements are adjacent.
    """
    strided_positions = positions(nest, loads(nest.value), ranges)
    if strided_positions is None:
        return nest
    extents = nest.extents
    numbers = [number for number, size in enumerate(extents) if is_dynamic(size) or size != 1]
    kept = 0 if all_axes else _kept([extents[number] for number in numbers], ranges)
    groups: list[list[int]] = []
    for number in numbers:
        joins = len(groups) > kept
        if joins and all(
            ranges.same(position.strides[groups[-1][-1]], position.strides[number] * extents[number])
            for position in strided_positions
        ):
            groups[-1].append(number)
        else:
            groups.append([number])
    if all(len(group) == 1 for group in groups):
        return nest
    axes = [_axis([nest.axes[number] for number in group], ranges) for group in groups]
    innermost = [group[-1] for group in groups]

    def place(indices: Sequence[Expr], shape: Sequence[Extent]) -> list[Expr]:
        linear = strided(indices, shape, nest.axes, ranges)
        assert linear is not None
        position = int64(linear.start)
        for axis, number in zip(axes, innermost, strict=True):
            stride = linear.strides[number]
            if is_dynamic(stride) or int(stride):
                position = position + axis.var * int64(stride)
        return [*(int64(0) for _ in indices[1:]), position]

    def on_load(read: TensorLoad) -> Any:
        if not read.indices:
            return read
        return tirx.BufferLoad(read.source, place(read.indices, read.source.shape))

    value = structural_map(nest.value, ((TensorLoad, on_load),))
    return replace_fields(nest, axes=axes, store=place(nest.store, nest.buffer.shape), value=value)


def _kept(extents: Sequence[Extent], ranges: SymbolRanges) -> int:
    """How many of the first axes stay for threads to share, of axes with `extents`."""
    tasks = 1
    for count, size in enumerate(extents, 1):
        tasks *= ranges.least(size)
        if not is_dynamic(extents[0]) or tasks >= _TASKS:
            return count
    return len(extents)


def _axis(axes: Sequence[Any], ranges: SymbolRanges) -> Any:
    """One axis in place of `axes`, whose types may differ: of those with a dynamic size it is int64."""
    if len(axes) == 1:
        return axes[0]
    count = ranges.product([axis.dom.extent for axis in axes])
    dtype = str(axes[0].var.ty.dtype) if isinstance(count, int) else str(count.ty.dtype)
    domain = tvm.ir.Range(tirx.const(0, dtype), tirx.const(count, dtype) if isinstance(count, int) else count)
    return tirx.IterVar(domain, tirx.Var("merged", dtype), tirx.IterVar.DataPar)
