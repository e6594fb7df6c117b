"""Converters of ONNX operators with an input that is a shape, or is computed from shapes.

TVM 0.27 accepts only constants for most of these inputs, and emits calls into its virtual machine for other
values. Converters have the interface of kiln.frontend.onnx.ops. Sizes are ints or TIR expressions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from onnx import numpy_helper
from tvm import relax, tirx

from kiln.extents import Extent
from kiln.frontend.onnx import counted_ops, data_dependent_shapes, data_dependent_sizes, run_axes
from kiln.frontend.onnx.agreement import agreed, may_agree
from kiln.frontend.onnx.inferred_axis import floor_divide, inferred_axis
from kiln.frontend.onnx.node import Node, prims, reshaped, shape_expr, smaller
from kiln.frontend.onnx.refusals import other_sizes
from kiln.frontend.onnx.shape_rules import as_ratio
from kiln.frontend.onnx.value import NotKnownError, Ratio
from kiln.frontend.symbols import Symbols, int64_of


def reshape(node: Node) -> Any:
    """Reshape to constant and symbolic sizes; 0 copies the input's size, -1 follows from the other sizes."""
    if node.has(1) and node.elements(1) is None:
        return data_dependent_shapes.reshape(node)
    sizes = node.known_elements(1, "shape")
    data, shape = node.tensor(0), node.shape(0)
    if not node.attributes.get("allowzero", 0):
        sizes = [shape[axis] if _is_number(size, 0) else size for axis, size in enumerate(sizes)]
    symbols = node.symbols
    if any(_is_number(size, -1) for size in sizes):
        known = [size for size in sizes if not _is_number(size, -1)]
        _check_divisible(symbols, symbols.product(shape), symbols.product(known), sizes)
        inferred = inferred_axis(symbols, shape, known)
        sizes = [inferred if _is_number(size, -1) else size for size in sizes]
    return reshaped(data, sizes)


def _check_divisible(symbols: Symbols, total: Extent, others: Extent, sizes: list[Extent]) -> None:
    """Raise ValueError if a tensor of `total` elements cannot have the shape `sizes` for all dimensions.

    `others`: the product of `sizes` without its -1.
    """
    failing = symbols.indivisible(total, others)
    if failing is not None:
        sizes_text = ", ".join(symbols.shown(size) for size in sizes)
        where = ", ".join(f"{dim} = {size}" for dim, size in failing.items()) or "any size"
        divisible = symbols.multiples(total, others, lambda top, bottom: bottom > 0 and top % bottom == 0)
        raise ValueError(
            f"its shape [{sizes_text}] does not fit a tensor of {symbols.shown(total)} elements with "
            f"{where}: {other_sizes(divisible)}"
        )


def flatten(node: Node) -> Any:
    """Flatten to computed sizes; TVM 0.27 emits -1, which it cannot always resolve for symbolic sizes."""
    shape = node.shape(0)
    axis = int(node.attributes.get("axis", 1))
    axis += len(shape) if axis < 0 else 0
    halves = [node.symbols.product(shape[:axis]), node.symbols.product(shape[axis:])]
    return reshaped(node.tensor(0), halves)


def squeeze(node: Node) -> Any:
    """Squeeze; without `axes`, all axes of size 1 are removed.

    The run checks that the size of a counted axis is 1: a Loop without iterations, for example, has no last
    row. Raises ValueError for another symbolic axis that is 1 for some sizes only.
    """
    shape = node.shape(0)
    axes = node.elements(1, "axes")
    if axes is None and node.has(1):
        return run_axes.squeeze(node)
    if axes is None:
        unclear = [size for size in shape if not isinstance(size, int) and not node.symbols.holds(size > 1)]
        if unclear:
            size = node.symbols.shown(unclear[0])
            raise ValueError(
                f"no axes given, and size {size} is 1 for some sizes only: give the axes or other 'dims'"
            )
        axes = [axis for axis, size in enumerate(shape) if _is_number(size, 1)]
    dropped = {int(axis) % len(shape) for axis in axes}
    for axis in dropped:
        if not may_agree(node.symbols, shape[axis], 1):
            size = node.symbols.shown(shape[axis])
            raise ValueError(f"axis {axis} has size {size}, only axes of size 1 can be squeezed")
    single = [1 if axis in dropped else size for axis, size in enumerate(shape)]
    data = agreed(node.builder, node.symbols, node.outputs[0], node.tensor(0), single)
    return relax.op.squeeze(data, sorted(dropped)) if dropped else data


def unsqueeze(node: Node) -> Any:
    """Unsqueeze at new axes."""
    if node.has(1) and node.elements(1) is None:
        return run_axes.unsqueeze(node)
    axes = node.known_elements(1, "axes")
    rank = len(node.shape(0)) + len(axes)
    return relax.op.expand_dims(node.tensor(0), sorted(int(axis) % rank for axis in axes))


def trilu(node: Node) -> Any:
    """Trilu with a diagonal that only the run knows; a constant diagonal is left to TVM."""
    if not node.has(1) or node.constant(1) is not None:
        return None
    op, emit, shape = relax.op, node.builder.emit, node.shape(0)
    row, column = (emit(op.arange(*prims([0, size, 1]), "int64")) for size in shape[-2:])
    distance = emit(op.subtract(emit(op.expand_dims(column, 0)), emit(op.expand_dims(row, 1))))
    diagonal = emit(op.astype(emit(op.reshape(node.tensor(1), [])), "int64"))
    upper = bool(node.attributes.get("upper", 1))
    inside = emit((op.greater_equal if upper else op.less_equal)(distance, diagonal))
    return op.where(inside, node.tensor(0), relax.const(0, str(node.tensor(0).ty.dtype)))


def expand(node: Node) -> Any:
    """Expand: broadcasting of the input and a shape; an axis of size 1 on either side is broadcast."""
    if node.elements(1) is None:
        return data_dependent_shapes.expand(node)
    target, shape = node.known_elements(1), node.shape(0)
    rank = max(len(shape), len(target))
    data_sizes = [1] * (rank - len(shape)) + shape
    target_sizes = [1] * (rank - len(target)) + target
    equal = [_needs_check(a, b, node.symbols) for a, b in zip(data_sizes, target_sizes, strict=True)]
    sizes_after_check = [b if run else a for a, b, run in zip(data_sizes, target_sizes, equal, strict=True)]
    target = [_broadcast(a, b, node.symbols) for a, b in zip(sizes_after_check, target_sizes, strict=True)]
    data = node.tensor(0)
    if any(equal):
        data = agreed(
            node.builder, node.symbols, node.outputs[0], data, sizes_after_check[rank - len(shape) :]
        )
    elif len(target) == len(shape) and all(map(node.symbols.equal, target, shape)):
        return data
    return relax.op.broadcast_to(data, shape_expr(target))


def slice_(node: Node) -> Any:
    """Slice; TVM 0.27 has no attributes of early operator sets, and gives empty slices negative sizes."""
    symbols, shape = node.symbols, node.shape(0)
    if any(node.has(index) and node.elements(index) is None for index in (1, 2, 4)):
        return data_dependent_sizes.slice_(node)
    starts, ends = node.known_elements(1, "starts"), node.known_elements(2, "ends")
    axes = node.known_elements(3) if node.has(3) else node.attributes.get("axes") or list(range(len(starts)))
    steps = node.known_elements(4) if node.has(4) else [1] * len(starts)
    axes = [int(axis) % len(shape) for axis in axes]
    numbers = [*starts, *ends, *steps, *(shape[axis] for axis in axes)]
    data = node.tensor(0)
    if all(isinstance(number, int) for number in numbers):
        return _fixed_slice(data, shape, zip(axes, starts, ends, steps, strict=True))
    begin, end, strides = [], [], []
    for axis, first, last, step in zip(axes, starts, ends, steps, strict=True):
        if not isinstance(step, int) or step == 0:
            raise _wrong_step(symbols.shown(step))
        size = shape[axis]
        if step > 0:
            low, high = _clamped(first, size, size, symbols), _clamped(last, size, size, symbols)
        else:  # flip the axis, then slice with a positive step
            data = relax.op.flip(data, axis)
            before = 0 if symbols.holds(size > 0) else -1  # the least position to start from
            low, high = [
                symbols.simplify(size - 1 - _clamped(end, size, size - 1, symbols, least))
                for end, least in ((first, before), (last, -1))
            ]
        begin.append(low)
        end.append(symbols.simplify(larger(low, high)))
        strides.append(abs(step))
    return relax.op.strided_slice(data, axes, prims(begin), prims(end), prims(strides), assume_inbound=True)


def _fixed_slice(data: Any, shape: list[Extent], limits: Iterable[tuple[Any, ...]]) -> Any:
    """A slice along axes of fixed sizes; `limits`: axis, start, end, step. Raises ValueError for step 0."""
    axes, begin, end, strides, sizes = [], [], [], [], list(shape)
    dtype = str(data.ty.dtype)
    for axis, first, last, step in limits:
        if step == 0:
            raise _wrong_step("0")
        # ONNX starts at 0, too, from a start before the axis; Python's slices with negative steps do not.
        indices = range(int(shape[axis]))[max(first, -int(shape[axis])) : last : step]
        sizes[axis] = len(indices)
        if len(indices) < int(shape[axis]) or step != 1:
            if step < 0:  # flipped, then with a positive step
                data = relax.op.flip(data, axis)
                last = int(shape[axis]) - 1
                indices = range(last - indices.start, last - indices.stop, -step)
            axes.append(axis)
            begin.append(indices.start)
            end.append(indices.stop)
            strides.append(indices.step)
    if any(_is_number(size, 0) for size in sizes):
        return relax.op.zeros(shape_expr(sizes), dtype)
    if not axes:
        return data
    return relax.op.strided_slice(data, axes, prims(begin), prims(end), prims(strides), assume_inbound=True)


def constant_of_shape(node: Node) -> Any:
    """ConstantOfShape as relax.full; sizes may be symbolic."""
    if node.elements(0) is None:
        return data_dependent_shapes.constant_of_shape(node)
    shape = node.known_elements(0)
    attribute = node.attributes.get("value")
    value = np.zeros(1, np.float32) if attribute is None else numpy_helper.to_array(attribute)
    dtype = str(value.dtype)
    return relax.op.full(shape_expr(shape), relax.const(value.reshape(()), dtype), dtype)


def range_(node: Node) -> Any:
    """Range with symbolic ends as relax.arange, which lowers to a loop over a symbolic extent.

    TVM 0.27 infers another length than it computes for negative steps, and negative ones for empty ranges, so
    relax.arange only counts up from 0 or by 1, as often as the range is long.
    """
    first = node.values.get(node.inputs[0])
    dtype = first.dtype if first else str(node.tensor(0).ty.dtype)
    exact = _exact_ends(node) if dtype.startswith("float") else None
    if exact is not None:
        return _float_range(node, exact, dtype)
    if any(node.elements(index) is None and node.constant(index) is None for index in range(3)):
        return counted_ops.range_(node)
    if dtype.startswith("float"):
        return None
    start, stop, step = [node.known_elements(index)[0] for index in range(3)]
    if all(isinstance(number, int) for number in (start, stop, step)):
        return relax.op.arange(*prims([start, stop, step]), dtype)
    symbols = node.symbols
    if not isinstance(step, int) or step == 0:
        raise _wrong_step(symbols.shown(step))
    count = _range_length(symbols, start, stop, step)
    if step == 1:
        return relax.op.arange(*prims([start, symbols.simplify(start + count), 1]), dtype)
    numbers = relax.op.multiply(relax.op.arange(*prims([0, count, 1]), dtype), relax.const(step, dtype))
    first = relax.op.arange(*prims([start, start + 1, 1]), dtype)
    return numbers if _is_number(start, 0) else relax.op.add(numbers, first)


def _range_length(symbols: Symbols, start: Extent, stop: Extent, step: int) -> Extent:
    """The number of numbers start, start + step, … before `stop`."""
    distance = stop - start if step > 0 else start - stop
    count = symbols.simplify(floor_divide(symbols.simplify(distance + abs(step) - 1), abs(step)))
    return count if symbols.holds(int64_of(count) >= 0) else symbols.simplify(larger(count, 0))


def _exact_ends(node: Node) -> list[Ratio] | None:
    """Start, limit and step of a range of floats as fractions, at least one of which depends on a size.

    None where one of them is not known before the model runs, or is not a fraction with a small divisor.
    """
    values = [node.values.get(name) for name in node.inputs]
    if any(value is None for value in values) or all(value.is_constant for value in values if value):
        return None
    try:
        return [as_ratio(value.extents()[0]) for value in values if value]
    except NotKnownError:
        return None


def _float_range(node: Node, ends: list[Ratio], dtype: str) -> Any:
    """start + i step, where the length follows exactly from sizes. Raises ValueError for a step of 0."""
    emit, common = node.builder.emit, math.lcm(*(end.bottom for end in ends))
    start, stop, step = (end.top * (common // end.bottom) for end in ends)
    if not isinstance(step, int) or step == 0:
        raise _wrong_step(f"{node.symbols.shown(ends[2].top)} / {ends[2].bottom}")
    count = _range_length(node.symbols, start, stop, step)
    indices = emit(relax.op.astype(emit(relax.op.arange(*prims([0, count, 1]), "int64")), dtype))
    steps = emit(relax.op.multiply(indices, relax.const(step / common, dtype)))
    return relax.op.add(steps, emit(relax.op.reshape(node.tensor(0), shape_expr([1]))))


def tile(node: Node) -> Any:
    """Tile as relax.tile, or as a broadcast for symbolic repeats; TVM 0.27 emits an opaque function."""
    if node.elements(1) is None:
        return data_dependent_shapes.tile(node)
    repeats = node.known_elements(1)
    if all(isinstance(count, int) for count in repeats):
        return relax.op.tile(node.tensor(0), repeats)
    shape = node.shape(0)
    with_ones = [size for extent in shape for size in (1, extent)]
    tiled = [size for pair in zip(repeats, shape, strict=True) for size in pair]
    sizes = [node.symbols.simplify(count * size) for count, size in zip(repeats, shape, strict=True)]
    repeated = relax.op.broadcast_to(
        relax.op.reshape(node.tensor(0), shape_expr(with_ones)), shape_expr(tiled)
    )
    return relax.op.reshape(repeated, shape_expr(sizes))


def _wrong_step(shown: str) -> ValueError:
    return ValueError(f"its step is {shown}, allowed: a fixed number other than 0")


def _is_number(size: Extent, number: int) -> bool:
    return isinstance(size, int) and size == number


def larger(a: Extent, b: Extent) -> Extent:
    """The maximum of two sizes."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    return tirx.max(*(tirx.IntImm("int64", x) if isinstance(x, int) else x for x in (a, b)))


def _clamped(end: Extent, size: Extent, most: Extent, symbols: Symbols, least: int = 0) -> Extent:
    """An end of a slice, clamped as ONNX demands; a negative end counts from the end of the axis.

    Raises ValueError if `end` is negative for some sizes only.
    """
    if symbols.holds(end < 0):
        return symbols.simplify(larger(least, size + end))
    if not symbols.holds(end >= 0):
        raise ValueError(
            f"an end of a slice, {symbols.shown(end)}, is negative for some sizes only, allowed: for all or "
            "none; give the dimension another range"
        )
    for smaller_end, greater in ((end, most), (most, end)):  # no minimum where the smaller one is known
        if symbols.holds(int64_of(smaller_end) <= int64_of(greater)):
            return symbols.simplify(smaller_end)
    return symbols.simplify(smaller(end, most))


def _needs_check(a: Extent, b: Extent, symbols: Symbols) -> bool:
    """Whether the run has to compare the sizes `a` and `b` of axes that broadcast."""
    broadcasts = _is_number(a, 1) or _is_number(b, 1) or _is_number(b, -1)
    return not broadcasts and not symbols.equal(a, b) and may_agree(symbols, a, b)


def _broadcast(a: Extent, b: Extent, symbols: Symbols) -> Extent:
    """The size that axes of sizes `a` and `b` broadcast to; `b` -1 stands for `a`. Raises ValueError."""
    if _is_number(a, 1) or _is_number(b, -1):
        return a if _is_number(b, -1) else b
    if _is_number(b, 1) or symbols.equal(a, b):
        return a
    shown = " and ".join(map(symbols.shown, (a, b)))
    raise ValueError(f"sizes {shown} do not broadcast for all sizes of the dimensions: {other_sizes({})}")


CONVERTERS: dict[str, Callable[[Node], Any]] = {
    "ConstantOfShape": constant_of_shape,
    "Expand": expand,
    "Flatten": flatten,
    "Range": range_,
    "Reshape": reshape,
    "Slice": slice_,
    "Squeeze": squeeze,
    "Tile": tile,
    "Trilu": trilu,
    "Unsqueeze": unsqueeze,
}
