"""Converter of ONNX's Pad, in all modes, to operators that graph passes can analyse.

TVM 0.27 emits opaque TIR functions. The converter has the interface of kiln.frontend.onnx.ops; amounts are
ints or TIR expressions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from kiln.frontend.counted import movement
from kiln.frontend.onnx import open_sizes
from kiln.frontend.onnx.node import Node, extents, prims, shape_expr
from kiln.frontend.symbols import Extent, int64_of

Pairs = Sequence[tuple[Extent, Extent]]


def pad(node: Node) -> Any:
    """Pad: constant mode → relax.nn.pad; other modes, and amounts that are expressions → relax.concat.

    Negative amounts cut elements off. Raises ValueError for unknown amounts and for those that may have
    either sign, and an unknown mode.
    """
    fills = node.has(2) and node.constant(2) is None
    if node.has(1) and (node.elements(1) is None or fills):
        return open_sizes.pad(node)
    amounts, shape = node.known_elements(1, "pads"), node.shape(0)
    rank = len(amounts) // 2
    axes = node.known_elements(3) if node.has(3) else range(rank)
    given: list[tuple[Extent, Extent]] = [(0, 0)] * len(shape)
    for axis, pair in zip(axes, zip(amounts[:rank], amounts[rank:], strict=True), strict=True):
        given[int(axis) % len(shape)] = pair
    mode = node.attributes.get("mode", b"constant").decode()
    data, pairs = _cut(node, given, mode)
    if all(isinstance(amount, int) and amount == 0 for pair in pairs for amount in pair):
        return data
    default = np.float32(node.attributes.get("value", 0.0))
    if mode != "constant":
        return _by_copies(node, data, pairs, mode)
    fill = np.asarray(node.constant(2) if node.has(2) else default).item()
    if all(isinstance(amount, int) for pair in pairs for amount in pair):
        widths = [width for pair in pairs for width in pair]
        return relax.op.nn.pad(data, widths, pad_mode="constant", pad_value=float(fill))
    return _by_parts(node, data, pairs, fill)


def _cut(node: Node, pairs: Pairs, mode: str) -> tuple[Any, Pairs]:
    """The input without the elements that negative amounts cut off, and the amounts that are left.

    Modes that repeat elements repeat those that are left, as in ONNX Runtime. Raises ValueError for amounts
    of either sign, and for those that cut more than there is.
    """
    data, shape, symbols = node.tensor(0), node.shape(0), node.symbols
    left = []
    for axis, pair in enumerate(pairs):
        off: list[Extent] = []
        for amount in pair:
            if not symbols.holds(amount >= 0) and not symbols.holds(amount <= 0):
                raise ValueError(f"amounts {pair[0]} and {pair[1]} of padding: negative for some sizes only")
            off.append(0 if symbols.holds(amount >= 0) else symbols.simplify(amount * -1))
        kept = [0 if symbols.holds(amount <= 0) else amount for amount in pair]
        left.append((kept[0], kept[1]))
        if all(_is_none(amount) for amount in off):
            continue
        low, high = off[0], symbols.simplify(shape[axis] - off[1])
        if not symbols.holds(high - low >= 0):
            raise ValueError(
                f"amounts {pair[0]} and {pair[1]} cut more than the axis of size {shape[axis]} has"
            )
        ends = [axis], prims([low]), prims([high])
        data = node.builder.emit(relax.op.strided_slice(data, *ends, assume_inbound=True))
    return data, left


def _is_none(amount: Extent) -> bool:
    return isinstance(amount, int) and amount == 0


def _by_parts(node: Node, result: Any, pairs: Pairs, fill: float) -> Any:
    """Constant padding by symbolic amounts: concatenate with tensors of the fill value."""
    shape = extents(result)
    dtype = str(result.ty.dtype)
    for axis, pair in enumerate(pairs):
        parts = [
            relax.op.full(
                shape_expr([*shape[:axis], amount, *shape[axis + 1 :]]), relax.const(fill, dtype), dtype
            )
            for amount in pair
        ]
        result = _around(result, axis, pair, parts)
        shape[axis] = node.symbols.simplify(pair[0] + shape[axis] + pair[1])
    return result


def _by_copies(node: Node, result: Any, pairs: Pairs, mode: str) -> Any:
    """Padding by elements of the tensor: mirrored (reflect), of the edge (edge), or of the other end (wrap).

    Raises ValueError for symbolic amounts, and for an axis that may be too short.
    """
    shape = extents(result)
    for axis, (before, after) in enumerate(pairs):
        if not isinstance(before, int) or not isinstance(after, int):
            raise ValueError(f"mode {mode} with amounts {before} and {after} that depend on a size")
        size = shape[axis]
        least = max(before, after) + (mode == "reflect") if mode != "edge" else 1
        if mode == "wrap" and not node.symbols.holds(size >= least):
            result = _wrapped(node, result, shape, axis, (before, after))
            shape[axis] = node.symbols.simplify(before + size + after)
            continue
        if not node.symbols.holds(size >= least):
            raise ValueError(
                f"mode {mode} by {before} and {after} of an axis of size {size}, at least {least}"
            )
        # Positions of the copied elements; negative ones count from the end, as the size may be dynamic.
        first = {"reflect": range(before, 0, -1), "edge": [0] * before, "wrap": range(-before, 0)}
        last = {"reflect": range(-2, -2 - after, -1), "edge": [-1] * after, "wrap": range(after)}
        if mode not in first:
            raise ValueError(f"mode {mode}, known: constant, {', '.join(first)}")
        parts = [_taken(node, result, axis, size, list(places)) for places in (first[mode], last[mode])]
        result = _around(result, axis, (before, after), parts)
        shape[axis] = node.symbols.simplify(before + size + after)
    return result


def _wrapped(node: Node, data: Any, shape: Sequence[Extent], axis: int, pair: tuple[int, int]) -> Any:
    """`data` of `shape`, repeated along an axis that may be shorter than what is added before and after."""
    before, after = pair
    sizes = [*shape[:axis], node.symbols.simplify(before + shape[axis] + after), *shape[axis + 1 :]]

    def read(at: Any, x: Any) -> Any:
        place = movement.padded_place(at[axis], before, int64_of(shape[axis]), "wrap")
        return x(*at[:axis], place, *at[axis + 1 :])

    return movement.move(node.builder, sizes, [node.builder.emit(data)], read, "pad")


def _taken(node: Node, tensor: Any, axis: int, size: Extent, places: list[int]) -> Any:
    """The elements of `axis` at `places`; negative positions count from the end.

    None if `places` is empty.
    """
    if not places:
        return None
    if min(places) < 0:
        low = node.symbols.simplify(size + min(places))
        tensor = relax.op.strided_slice(tensor, [axis], prims([low]), prims([size]), assume_inbound=True)
        places = [place - min(places) for place in places]
    return relax.op.take(tensor, relax.const(np.array(places, np.int64)), axis)


def _around(tensor: Any, axis: int, pair: tuple[Extent, Extent], parts: Sequence[Any]) -> Any:
    """Concatenate `tensor` with the padding before and after it, except where its amount is 0."""
    kept = [None if isinstance(n, int) and n == 0 else part for n, part in zip(pair, parts, strict=True)]
    pieces = [piece for piece in (kept[0], tensor, kept[1]) if piece is not None]
    return tensor if len(pieces) == 1 else relax.op.concat(pieces, axis)
