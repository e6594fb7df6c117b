"""Padding rules of operators that select elements by position: slices, ranges, lookups in tables."""

from __future__ import annotations

import itertools
from typing import Any

from tvm import tirx

from kiln.graph.bindings import Array, constant
from kiln.specialize.padding.align import Operands
from kiln.specialize.padding.context import Context, Rule
from kiln.specialize.padding.sizes import Size, shape_of
from kiln.specialize.padding.tensors import (
    Atom,
    Axis,
    NotNeutralError,
    Padded,
    Region,
    keys_of,
    tensor_state,
    without_axis,
)
from kiln.specialize.padding.values import FINITE, ValueRange, join, of_array

MOST_TABLE_ELEMENTS = 1 << 28  # elements of a constant table that are inspected, over all sizes of a bucket


def arange(context: Context, call: Any) -> Padded:
    """arange: begin and step must not depend on a padded dimension; the end may."""
    start, step = (context.number(call.args[index]) for index in (0, 2))
    end = call.args[1]
    stop = None if isinstance(end, tirx.FloatImm) else context.sizes.greatest(end)
    any_element = FINITE
    if start.is_constant and step.is_constant and stop is not None and step.low > 0:
        any_element = ValueRange(start.low, max(stop - 1, start.low))
    return context.new(call.ty, lambda region: any_element)


def strided_slice(context: Context, call: Any) -> Padded:
    """strided_slice: begin must not be counted from the end of a padded axis, which padding moves."""
    state = context.padded(call.args[0])
    axis_indices, begins, ends = (list(call.args[index].fields) for index in (1, 2, 3))
    steps = list(call.args[4].fields) if len(call.args) > 4 else [tirx.IntImm("int64", 1)] * len(axis_indices)
    axes = list(state.axes)
    shorter: set[int] = set()  # keys of padded parts that begin before the padded part of the operand
    for axis_index, *bounds in zip(axis_indices, begins, ends, steps, strict=True):
        axis = int(axis_index) % len(axes)
        begin, end, step = (context.sizes.simplify(bound) for bound in bounds)
        axes[axis], early = _cut(context, call, state, axis, begin, end, step)
        shorter |= early
    exact = _table_slice(context, call, axes, begins, steps)
    if exact is not None:
        return exact

    def value(region: Region) -> ValueRange:
        return join(*(state.at(region - early) for early in _subsets(region & shorter)))

    return tensor_state(axes, value)


def _subsets(keys: Region) -> list[Region]:
    return [frozenset(c) for n in range(len(keys) + 1) for c in itertools.combinations(sorted(keys), n)]


def _cut(
    context: Context, call: Any, state: Padded, axis: int, begin: Size, end: Size, step: Size
) -> tuple[Axis, set[int]]:
    """One axis of a slice, and the key of its padded atom if the padded part begins earlier than before.

    Raises NotNeutralError where the slice cannot be followed along a padded axis.
    """
    sizes, axis_before = context.sizes, state.axes[axis]
    size, size_before = sizes.simplify(shape_of(call.ty)[axis]), shape_of(call.args[0].ty)[axis]
    if sizes.equal(begin, 0) and sizes.equal(end, size_before) and sizes.equal(step, 1):
        return axis_before, set()
    keys = keys_of([axis_before])
    if sizes.depends(begin) or sizes.depends(step):
        raise NotNeutralError(f"it counts from the end of axis {axis}, which padding moves")
    if not keys and not sizes.depends(size):
        return sizes.axis(size), set()
    if not (sizes.holds(begin >= 0) and sizes.holds(step > 0)):
        raise NotNeutralError(f"it counts from the end of axis {axis}, which is padded")
    if len(axis_before) > 1:
        raise NotNeutralError(f"it cuts axis {axis}, whose factors a reshape has merged")
    if not sizes.holds(end <= size_before):
        raise NotNeutralError(f"it may take elements after the kept part of axis {axis}")
    if not sizes.depends(size):
        return sizes.axis(size), set()
    cut = sizes.atom(size)
    if keys:
        cut = Atom(cut.size, keys[0])
    assert cut.key is not None
    return (cut,), (set() if keys and sizes.equal(end, size_before) else {cut.key})


def _table_slice(
    context: Context, call: Any, axes: list[Axis], begins: list[Any], steps: list[Any]
) -> Padded | None:
    """A slice of the first elements of a constant, such as a causal mask, with exact values per region.

    The constant's elements are inspected for every size of the bucket. None where the operand is not a
    constant, the slice is of another form, or MOST_TABLE_ELEMENTS would be exceeded.
    """
    table = constant(call.args[0])
    ones = all(isinstance(step, tirx.IntImm) and int(step) == 1 for step in steps)
    if table is None or not ones or any(not _is_zero(begin) for begin in begins):
        return None
    shapes = context.sizes.for_every_size(shape_of(call.ty), MOST_TABLE_ELEMENTS // max(table.size, 1))
    if shapes is None:
        return None
    greatest = [max(row[axis] for row in shapes) for axis in range(table.ndim)]
    table = table[tuple(slice(size) for size in greatest)]
    return tensor_state(axes, lambda region: _table_values(table, axes, shapes, region))


def _is_zero(begin: Any) -> bool:
    return isinstance(begin, tirx.IntImm) and int(begin) == 0


def _table_values(table: Array, axes: list[Axis], shapes: list[list[int]], region: Region) -> ValueRange:
    """The values in `region` of a constant table, for all `shapes` that the kept part may have."""
    values: list[ValueRange] = []
    for shape in shapes:
        elements = table[
            tuple(
                slice(size, None) if set(keys_of([axis])) & region else slice(size)
                for axis, size in zip(axes, shape, strict=True)
            )
        ]
        if elements.size:
            values.append(of_array(elements))
    return join(*values) if values else ValueRange(0, 0)


def take(context: Context, call: Any) -> Padded:
    """take: rows of a table; along a padded axis, indices must be within the least size of the axis."""
    table, indices = context.padded(call.args[0]), context.padded(call.args[1])
    if call.attrs.axis is None:
        raise NotNeutralError("it counts the elements of all axes")
    axis = int(call.attrs.axis) % len(table.axes)
    _check_inside(context, call, table, indices, axis)
    rest = without_axis(table, axis)
    outer, inner = (renamed(context, operand) for operand in (rest, indices))
    axes = [*outer.axes[:axis], *inner.axes, *outer.axes[axis + 1 :]]
    return tensor_state(axes, outer.at)


def renamed(context: Context, state: Padded) -> Padded:
    """A copy of the state whose padded atoms have new keys, as two operands may come from one tensor."""
    axes = tuple(context.sizes.like(axis) for axis in state.axes)
    new = dict(zip(keys_of(axes), state.keys, strict=True))
    return tensor_state(axes, lambda region: state.at(new[key] for key in region))


def _check_inside(context: Context, call: Any, table: Padded, indices: Padded, axis: int) -> None:
    """Raise NotNeutralError unless the indices into a padded axis are known to be in its kept part."""
    if not keys_of([table.axes[axis]]):
        return
    if len(table.axes[axis]) > 1:
        raise NotNeutralError(f"it picks along axis {axis}, whose factors a reshape has merged")
    least = context.sizes.least(shape_of(call.args[0].ty)[axis])
    kept = indices.kept
    if least is None or not kept.known or kept.low < 0 or kept.high >= least:
        raise NotNeutralError(f"its indices are not known to be in the kept part of axis {axis}")


def gather_elements(context: Context, call: Any) -> Padded:
    """gather_elements: along a padded axis, indices must be known to be in the kept part."""
    data, indices = context.padded(call.args[0]), context.padded(call.args[1])
    axis = int(call.attrs.axis) % len(data.axes)
    _check_inside(context, call, data, indices, axis)
    rest = without_axis(data, axis)
    operands = Operands([rest, indices], context.sizes)
    return tensor_state(operands.axes, lambda region: rest.at(operands.region(0, region)))


def one_hot(context: Context, call: Any) -> Padded:
    """one_hot: adds an axis of the fixed size `depth`."""
    indices = context.padded(call.args[0])
    rank = len(indices.axes) + 1
    axis = int(call.attrs.axis) % rank
    axes = (*indices.axes[:axis], (Atom(int(call.attrs.depth)),), *indices.axes[axis:])
    return tensor_state(axes, lambda region: FINITE)


RULES: dict[str, Rule] = {
    "arange": arange,
    "strided_slice": strided_slice,
    "take": take,
    "gather_elements": gather_elements,
    "one_hot": one_hot,
}
