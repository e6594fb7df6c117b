"""ONNX operators that take a shape, or amounts that may be made of shapes, as an input.

TVM 0.27 takes constants there, and for most of them nothing else; what it makes of the others are calls into
its virtual machine. Converters are as in kiln.frontend.onnx_ops; sizes are ints or TIR expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import numpy_helper
from tvm import relax, tirx

from kiln.frontend.onnx_node import Node, as_tensor
from kiln.frontend.onnx_value import Value, from_items
from kiln.frontend.symbols import Extent, Symbols


def reshape(node: Node) -> Any:
    """Reshape to numbers and expressions; 0 keeps a size, -1 takes what is left."""
    wanted = node.known(1, "shape")
    data, shape = node.tensor(0), node.shape(0)
    if not node.attributes.get("allowzero", 0):
        wanted = [shape[axis] if _is(size, 0) else size for axis, size in enumerate(wanted)]
    symbols = node.symbols
    if any(_is(size, -1) for size in wanted):
        rest = symbols.product([size for size in wanted if not _is(size, -1)])
        left = symbols.simplify(_floor_divide(symbols.product(shape), rest))
        wanted = [left if _is(size, -1) else size for size in wanted]
    return relax.op.reshape(data, _shape(wanted))


def flatten(node: Node) -> Any:
    """Flatten; TVM 0.27 leaves -1 in the shape, which it cannot always resolve for symbolic sizes."""
    shape = node.shape(0)
    axis = int(node.attributes.get("axis", 1))
    axis += len(shape) if axis < 0 else 0
    sizes = [node.symbols.product(shape[:axis]), node.symbols.product(shape[axis:])]
    return relax.op.reshape(node.tensor(0), _shape(sizes))


def expand(node: Node) -> Any:
    """Broadcasting to a shape; an axis of size 1 on either side takes the other's."""
    wanted, shape = node.known(1), node.shape(0)
    rank = max(len(shape), len(wanted))
    ours = [1] * (rank - len(shape)) + shape
    theirs = [1] * (rank - len(wanted)) + wanted
    sizes = [_broadcast(a, b, node.symbols) for a, b in zip(ours, theirs, strict=True)]
    return relax.op.broadcast_to(node.tensor(0), _shape(sizes))


def slice_(node: Node) -> Any:
    """Slice with ends that are expressions, or along a symbolic axis."""
    symbols, shape = node.symbols, node.shape(0)
    starts, ends = node.known(1, "starts"), node.known(2, "ends")
    axes = node.known(3) if node.has(3) else node.attributes.get("axes") or list(range(len(starts)))
    steps = node.known(4) if node.has(4) else [1] * len(starts)
    axes = [int(axis) % len(shape) for axis in axes]
    numbers = [*starts, *ends, *steps, *(shape[axis] for axis in axes)]
    if all(isinstance(number, int) for number in numbers):
        return None
    begin, end = [], []
    for axis, first, last, step in zip(axes, starts, ends, steps, strict=True):
        if not isinstance(step, int) or step <= 0:
            raise ValueError(f"a step of {step} along an axis of symbolic size")
        low = _inside(first, shape[axis], symbols)
        begin.append(low)
        end.append(symbols.simplify(_max(low, _inside(last, shape[axis], symbols))))
    return relax.op.strided_slice(
        node.tensor(0), axes, _prims(begin), _prims(end), _prims(steps), assume_inbound=True
    )


def gather(node: Node) -> Any:
    """Gather; TVM 0.27 asks its virtual machine for the size that negative indices count from."""
    axis = int(node.attributes.get("axis", 0))
    data, size = node.tensor(0), node.shape(0)[axis]
    known = node.whole(1) if node.inputs[1] in node.values else None
    if known is not None:
        symbols = node.symbols
        placed = [index + size if symbols.holds(index < 0) else index for index in known]
        if all(symbols.holds(index >= 0) for index in placed):
            shape = node.values[node.inputs[1]].items.shape
            items = from_items([symbols.simplify(index) for index in placed]).items.reshape(shape)
            return relax.op.take(data, as_tensor(Value(items, "int64")), axis)
    indices = node.tensor(1)
    dtype = str(indices.ty.dtype)
    if dtype.startswith("uint"):
        return relax.op.take(data, indices, axis)
    extent = as_tensor(Value(from_items([size]).items, dtype))
    if isinstance(size, int):
        extent = relax.const(size, dtype)
    wrapped = relax.op.where(
        relax.op.less(indices, relax.const(0, dtype)), relax.op.add(indices, extent), indices
    )
    return relax.op.take(data, wrapped, axis)


def constant_of_shape(node: Node) -> Any:
    """A tensor of one value; its shape may be expressions."""
    shape = node.known(0)
    given = node.attributes.get("value")
    value = np.zeros(1, np.float32) if given is None else numpy_helper.to_array(given)
    dtype = str(value.dtype)
    return relax.op.full(_shape(shape), relax.const(value.reshape(()), dtype), dtype)


def range_(node: Node) -> Any:
    """Range between expressions → relax.arange, which lowers to a loop over a symbolic extent."""
    first = node.values.get(node.inputs[0])
    dtype = first.dtype if first else str(node.tensor(0).ty.dtype)
    if dtype.startswith("float"):
        return None
    start, stop, step = [node.known(index)[0] for index in range(3)]
    return relax.op.arange(*_prims([start, stop, step]), dtype)


def tile(node: Node) -> Any:
    """Tile → relax.tile, for symbolic repeats a broadcast; TVM 0.27 emits an opaque function."""
    repeats = node.known(1)
    if all(isinstance(count, int) for count in repeats):
        return relax.op.tile(node.tensor(0), repeats)
    shape = node.shape(0)
    between = [size for extent in shape for size in (1, extent)]
    spread = [size for pair in zip(repeats, shape, strict=True) for size in pair]
    whole = [node.symbols.simplify(count * size) for count, size in zip(repeats, shape, strict=True)]
    wide = relax.op.broadcast_to(relax.op.reshape(node.tensor(0), _shape(between)), _shape(spread))
    return relax.op.reshape(wide, _shape(whole))


def pad(node: Node) -> Any:
    """Constant padding → relax.nn.pad; amounts that are expressions → concatenation.

    TVM 0.27 emits an opaque TIR function, which a graph pass cannot merge into the convolution that follows.
    """
    if node.attributes.get("mode", b"constant") != b"constant" or node.has(3):
        return None
    amounts = node.known(1, "pads")
    value = node.constant(2) if node.has(2) else np.float32(node.attributes.get("value", 0.0))
    if value is None:
        return None
    fill = np.asarray(value).item()
    rank = len(amounts) // 2
    pairs = list(zip(amounts[:rank], amounts[rank:], strict=True))
    if all(isinstance(amount, int) for amount in amounts):
        if min(amounts) < 0:
            return None
        if not any(amounts):
            return node.tensor(0)
        widths = [width for pair in pairs for width in pair]
        return relax.op.nn.pad(node.tensor(0), widths, pad_mode="constant", pad_value=float(fill))
    return _pad_by_parts(node, pairs, fill)


def _pad_by_parts(node: Node, pairs: Sequence[tuple[Extent, Extent]], fill: float) -> Any:
    result, shape = node.tensor(0), node.shape(0)
    dtype = str(result.ty.dtype)
    for axis, (before, after) in enumerate(pairs):
        if not all(node.symbols.holds(amount >= 0) for amount in (before, after)):
            raise ValueError(f"amounts {before} and {after} of padding: negative for some sizes")
        parts = []
        for amount in (before, after):
            piece = [*shape[:axis], amount, *shape[axis + 1 :]]
            parts.append(relax.op.full(_shape(piece), relax.const(fill, dtype), dtype))
        kept = [part for part, amount in zip(parts, (before, after), strict=True) if not _is(amount, 0)]
        if not kept:
            continue
        pieces = [*([] if _is(before, 0) else parts[:1]), result, *([] if _is(after, 0) else parts[1:])]
        result = relax.op.concat(pieces, axis)
        shape[axis] = node.symbols.simplify(before + shape[axis] + after)
    return result


def _is(size: Extent, number: int) -> bool:
    return isinstance(size, int) and size == number


def _shape(sizes: Sequence[Extent]) -> Any:
    return relax.ShapeExpr([int(size) if isinstance(size, int) else size for size in sizes])


def _prims(sizes: Sequence[Extent]) -> list[Any]:
    return [relax.prim_value(tirx.IntImm("int64", size) if isinstance(size, int) else size) for size in sizes]


def _floor_divide(a: Extent, b: Extent) -> Extent:
    return a // b if isinstance(a, int) and isinstance(b, int) else tirx.floordiv(a, b)


def _max(a: Extent, b: Extent) -> Extent:
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    return tirx.max(*(tirx.IntImm("int64", x) if isinstance(x, int) else x for x in (a, b)))


def _min(a: Extent, b: Extent) -> Extent:
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    return tirx.min(*(tirx.IntImm("int64", x) if isinstance(x, int) else x for x in (a, b)))


def _inside(end: Extent, size: Extent, symbols: Symbols) -> Extent:
    """An end of a slice within 0..size; negative ones count from the back."""
    if symbols.holds(end < 0):
        return symbols.simplify(_max(0, size + end))
    if not symbols.holds(end >= 0):
        raise ValueError(f"an end of a slice, {end}, is negative for some sizes only")
    return symbols.simplify(_min(end, size))


def _broadcast(a: Extent, b: Extent, symbols: Symbols) -> Extent:
    if _is(a, 1) or _is(b, -1):
        return a if _is(b, -1) else b
    if _is(b, 1) or symbols.equal(a, b):
        return a
    raise ValueError(f"sizes {a} and {b} do not broadcast for all sizes of the dimensions")


CONVERTERS: dict[str, Callable[[Node], Any]] = {
    "ConstantOfShape": constant_of_shape,
    "Expand": expand,
    "Flatten": flatten,
    "Gather": gather,
    "Pad": pad,
    "Range": range_,
    "Reshape": reshape,
    "Slice": slice_,
    "Tile": tile,
}
