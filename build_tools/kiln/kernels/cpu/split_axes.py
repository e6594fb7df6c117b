"""Axes that occur in quotients and remainders, as in a tile or a repeat, split into two axes each.

With i = outer * 50 + inner, i % 50 is `inner`, whose elements vectors load as they are, and i // 50 is
`outer`, the same for a whole vector. A remainder in each lane would be a load for each lane.
"""

from __future__ import annotations

from dataclasses import replace as replace_fields
from typing import Any

import tvm
from tvm import sym, tirx
from tvm.ir import Expr, TensorLoad

from kiln.callbacks import structural_map, structural_walk
from kiln.kernels.cpu.interleave import read_interleaving
from kiln.tir.fused import Nest, replace
from kiln.tir.inline import Expanded
from kiln.tir.symbols import SymbolRanges, int64, is_dynamic

# An index may be made of several quotients, one inside the other.
_MOST_SPLITS = 8


def with_split_axes(nest: Nest, expanded: Expanded, lanes: int, ranges: SymbolRanges) -> Nest:
    """`nest` with two axes for each whose quotients and remainders it reads; the nest itself without any.

    Also the nest itself if its last axis would be shorter than a vector of `lanes` and could not be
    interleaved with the axis before. `expanded`: the expression of an element, which the result stores, too.
    """
    if nest.reduced or expanded.steps:
        return nest
    split, value = nest, expanded.value
    for _ in range(_MOST_SPLITS):
        division = _divided(split, value)
        if division is None:
            break
        split = _split(replace_fields(split, value=value), *division)
        value = split.value
    if split is nest:
        return nest
    shorter = not split.axes[-1].same_as(nest.axes[-1]) and split.extents[-1] < lanes
    return nest if shorter and read_interleaving(split, value, lanes, ranges) is None else split


def _divided(nest: Nest, value: Expr) -> tuple[int, int] | None:
    """The number of an axis that `value` divides into equal parts, and the greatest size of such a part."""
    divisions: list[tuple[int, int]] = []

    def visit(node: Any) -> None:
        if not isinstance(node.b, tirx.IntImm):
            return
        for number, axis in enumerate(nest.axes):
            size, length = int(node.b), nest.extents[number]
            if not axis.var.same_as(node.a) or is_dynamic(length):
                continue
            if 1 < size < length and length % size == 0:
                divisions.append((number, size))

    structural_walk(value, (((tirx.FloorMod, tirx.FloorDiv), visit),))
    return max(divisions, key=lambda division: division[1], default=None)


def _split(nest: Nest, number: int, size: int) -> Nest:
    """`nest` with the axis `number` split into two axes; the inner axis has `size` elements."""
    old = nest.axes[number]
    outer, inner = _axis(old, "outer", nest.extents[number] // size), _axis(old, "inner", size)
    analyzer = sym.Analyzer()
    axes = [*nest.axes[:number], outer, inner, *nest.axes[number + 1 :]]
    for axis in axes:
        analyzer.bind(axis.var, axis.dom)
    where = {old.var: outer.var * int64(size) + inner.var}

    def on_load(read: TensorLoad) -> Any:
        return tirx.BufferLoad(read.source, [analyzer.simplify(index) for index in read.indices])

    value = structural_map(replace(nest.value, where, {}), ((TensorLoad, on_load),))
    store = [analyzer.simplify(replace(index, where, {})) for index in nest.store]
    return replace_fields(nest, axes=axes, store=store, value=value)


def _axis(old: Any, piece: str, size: int) -> Any:
    """An axis of `size` elements, a part of `old`."""
    dtype = str(old.var.ty.dtype)
    domain = tvm.ir.Range(tirx.const(0, dtype), tirx.const(size, dtype))
    return tirx.IterVar(domain, tirx.Var(f"{old.var.name}_{piece}", dtype), tirx.IterVar.DataPar)
