"""Converter of ONNX's Pad, in all modes, to operators that graph passes can analyse.

TVM 0.27 emits opaque TIR functions. The converter has the interface of kiln.frontend.onnx.ops; amounts are
ints or TIR expressions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from kiln.extents import Extent, shape_of
from kiln.frontend.counted import movement
from kiln.frontend.onnx import data_dependent_sizes
from kiln.frontend.onnx.node import Node, part, shape_expr
from kiln.frontend.onnx.refusals import other_sizes
from kiln.frontend.symbols import int64_of

Pairs = Sequence[tuple[Extent, Extent]]
_COPYING = ("reflect", "edge", "wrap")  # modes that repeat elements of the tensor


def pad(node: Node) -> Any:
    """Pad: relax.nn.pad in constant mode, relax.concat in other modes and for amounts that are expressions.

    Negative amounts cut elements off. Raises ValueError for amounts that are unknown or may have either
    sign, and for an unknown mode.
    """
    fills = node.has(2) and node.constant(2) is None
    if node.has(1) and (node.elements(1) is None or fills):
        return data_dependent_sizes.pad(node)
    amounts, shape = node.known_elements(1, "pads"), node.shape(0)
    rank = len(amounts) // 2
    axes = node.known_elements(3) if node.has(3) else range(rank)
    by_axis: list[tuple[Extent, Extent]] = [(0, 0)] * len(shape)
    for axis, pair in zip(axes, zip(amounts[:rank], amounts[rank:], strict=True), strict=True):
        by_axis[int(axis) % len(shape)] = pair
    mode = node.attributes.get("mode", b"constant").decode()
    data, pairs = _without_cut_elements(node, by_axis, mode)
    if all(isinstance(amount, int) and amount == 0 for pair in pairs for amount in pair):
        return data
    default = np.float32(node.attributes.get("value", 0.0))
    if mode != "constant":
        return pad_by_copies(node, data, pairs, mode)
    fill = np.asarray(node.constant(2) if node.has(2) else default).item()
    if all(isinstance(amount, int) for pair in pairs for amount in pair):
        widths = [width for pair in pairs for width in pair]
        return relax.op.nn.pad(data, widths, pad_mode="constant", pad_value=float(fill))
    return _pad_by_constant(node, data, pairs, fill)


def _without_cut_elements(node: Node, pairs: Pairs, mode: str) -> tuple[Any, Pairs]:
    """The input without the elements that negative amounts cut off, and the amounts that are not negative.

    Modes that repeat elements repeat elements that remain, as in ONNX Runtime; edge mode keeps the nearest
    element where none would remain, as in PyTorch. Raises ValueError for amounts that may have either sign,
    and for amounts that cut more elements than the axis has.
    """
    data, shape, symbols = node.tensor(0), node.shape(0), node.symbols
    remaining = []
    for axis, pair in enumerate(pairs):
        cut_off: list[Extent] = []
        for amount in pair:
            if not symbols.holds(amount >= 0) and not symbols.holds(amount <= 0):
                raise ValueError(
                    f"amounts {pair[0]} and {pair[1]} of padding are negative for some sizes only: "
                    f"{other_sizes({})}"
                )
            cut_off.append(0 if symbols.holds(amount >= 0) else symbols.simplify(amount * -1))
        added = [0 if symbols.holds(amount <= 0) else amount for amount in pair]
        remaining.append((added[0], added[1]))
        if all(_is_zero(amount) for amount in cut_off):
            continue
        low, high = cut_off[0], symbols.simplify(shape[axis] - cut_off[1])
        kept = _nearest_element(node, shape[axis], pair) if mode == "edge" else None
        if kept is not None:
            low, high, remaining[-1] = kept
        if not symbols.holds(high - low >= 0):
            raise ValueError(
                f"amounts {pair[0]} and {pair[1]} cut more than the axis of size {shape[axis]} has"
            )
        data = node.builder.emit(part(data, axis, low, high))
    return data, remaining


def _nearest_element(
    node: Node, size: Extent, pair: tuple[Extent, Extent]
) -> tuple[Extent, Extent, tuple[Extent, Extent]] | None:
    """The element, as a part of the axis, whose copies fill an axis that is cut off from one side alone.

    Returns the part's first position, the position after it, and the amounts of its copies; None where an
    element remains for some size, or nothing is added on the other side.
    """
    holds = node.symbols.holds
    copies = node.symbols.simplify(pair[0] + size + pair[1] - 1)
    if not holds(size >= 1) or not holds(copies >= 0):
        return None
    if holds(pair[0] + size <= 0):
        return node.symbols.simplify(size - 1), size, (0, copies)
    return (0, 1, (copies, 0)) if holds(pair[1] + size <= 0) else None


def _is_zero(amount: Extent) -> bool:
    return isinstance(amount, int) and amount == 0


def _pad_by_constant(node: Node, result: Any, pairs: Pairs, fill: float) -> Any:
    """Constant padding by symbolic amounts: concatenate with tensors of the fill value."""
    shape = shape_of(result)
    dtype = str(result.ty.dtype)
    for axis, pair in enumerate(pairs):
        fills = [
            relax.op.full(
                shape_expr([*shape[:axis], amount, *shape[axis + 1 :]]), relax.const(fill, dtype), dtype
            )
            for amount in pair
        ]
        result = _with_padding(result, axis, pair, fills)
        shape[axis] = node.symbols.simplify(pair[0] + shape[axis] + pair[1])
    return result


def pad_by_copies(node: Node, result: Any, pairs: Pairs, mode: str) -> Any:
    """Padding by elements of the tensor: mirrored (reflect), of the edge (edge), or of the other end (wrap).

    Raises ValueError for an unknown mode, and for an axis that may be too short.
    """
    shape = shape_of(result)
    for axis, (before, after) in enumerate(pairs):
        if all(_is_zero(amount) for amount in (before, after)):
            continue
        if mode not in _COPYING:
            raise ValueError(f"mode {mode}, known: constant, {', '.join(_COPYING)}")
        size = shape[axis]
        amounts = (
            [max(before, after)] if isinstance(before, int) and isinstance(after, int) else [before, after]
        )
        least = [1] if mode == "edge" else [amount + (mode == "reflect") for amount in amounts]
        shorter = mode == "wrap" and not all(node.symbols.holds(size >= one) for one in least)
        for one in () if shorter else least:
            _check_length(node, mode, (before, after), size, one)
        if shorter or not isinstance(before, int) or not isinstance(after, int):
            result = _pad_by_places(node, result, shape, axis, (before, after), mode)
        else:
            # Positions of the copied elements; negative ones count from the end, as the size may be dynamic.
            first = {"reflect": range(before, 0, -1), "edge": [0] * before, "wrap": range(-before, 0)}
            last = {"reflect": range(-2, -2 - after, -1), "edge": [-1] * after, "wrap": range(after)}
            copies = [
                _elements_at(node, result, axis, size, list(positions))
                for positions in (first[mode], last[mode])
            ]
            result = _with_padding(result, axis, (before, after), copies)
        shape[axis] = node.symbols.simplify(before + size + after)
    return result


def _check_length(node: Node, mode: str, pair: tuple[Extent, Extent], size: Extent, least: Extent) -> None:
    """Raise ValueError, with the sizes of the dimensions, where an axis of `size` may be below `least`."""
    too_small = node.symbols.exceeding(least, size)
    if too_small is None:
        return
    where = ", ".join(f"{dim} = {number}" for dim, number in too_small.items())
    remedy = f", which fails with {where}: raise 'min' in 'dims'" if where else ""
    before, after, length, needed = map(node.symbols.shown, (*pair, size, least))
    raise ValueError(
        f"mode {mode} by {before} and {after} of an axis of size {length}, allowed: at least {needed}{remedy}"
    )


def _pad_by_places(
    node: Node, data: Any, shape: Sequence[Extent], axis: int, pair: tuple[Extent, Extent], mode: str
) -> Any:
    """`data` of `shape`, padded along `axis` by amounts that depend on sizes, or repeated more than once."""
    before, after = pair
    sizes = [*shape[:axis], node.symbols.simplify(before + shape[axis] + after), *shape[axis + 1 :]]

    def read(indices: Any, x: Any) -> Any:
        source = movement.padded_place(indices[axis], int64_of(before), int64_of(shape[axis]), mode)
        return x(*indices[:axis], source, *indices[axis + 1 :])

    return movement.move(node.builder, sizes, [node.builder.emit(data)], read, "pad")


def _elements_at(node: Node, tensor: Any, axis: int, size: Extent, positions: list[int]) -> Any:
    """The elements of `axis` at `positions`; negative positions count from the end.

    None if `positions` is empty.
    """
    if not positions:
        return None
    if min(positions) < 0:
        low = node.symbols.simplify(size + min(positions))
        tensor = part(tensor, axis, low, size)
        positions = [position - min(positions) for position in positions]
    return relax.op.take(tensor, relax.const(np.array(positions, np.int64)), axis)


def _with_padding(tensor: Any, axis: int, pair: tuple[Extent, Extent], paddings: Sequence[Any]) -> Any:
    """Concatenate `tensor` with the padding before and after it, except where its amount is 0."""
    present = [
        None if isinstance(n, int) and n == 0 else padding for n, padding in zip(pair, paddings, strict=True)
    ]
    pieces = [piece for piece in (present[0], tensor, present[1]) if piece is not None]
    return tensor if len(pieces) == 1 else relax.op.concat(pieces, axis)
