"""Converters of TFLite operators that cut parts out of tensors.

What they write of an axis with a dynamic size grows with it or is the same at all sizes: see sizes.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import relax

from kiln.frontend.tflite.operands import TfliteOperands, const

op = relax.op


@dataclass(frozen=True)
class _Cut:
    """The places of an axis that a slice takes: every step-th one from `begin` to before `end`.

    backwards: they are taken from the last one to the first. alone: only one place is taken, and the result
    does not have the axis.
    """

    axis: int
    begin: int
    end: int
    step: int = 1
    backwards: bool = False
    alone: bool = False


def strided_slice(node: TfliteOperands) -> Any:
    """STRIDED_SLICE with all of its masks. The run may compute the places of axes that the result drops.

    TVM 0.27 ignores that ends are offsets to begins, and makes the result a constant shape, which is wrong
    for an axis of a dynamic size that is shorter than the end at some sizes.
    """
    options = node.options("StridedSliceOptions")
    step = node.constant_array(3).reshape(-1).tolist()
    is_known = not any(node.array(index) is None for index in (1, 2))
    if not is_known:
        _check_masks(options, len(step))
    begin, end = (
        node.constant_array(index).reshape(-1).tolist() if is_known else [value] * len(step)
        for index, value in ((1, 0), (2, 1))
    )
    if hasattr(options, "Offset") and options.Offset():
        end = _ends(options, begin, end, step)
    parts, added = _parts(options, node.shape(0), [*zip(begin, end, step, strict=True)])
    data = node.raw(0) if is_known else _placed(node, options, len(step), parts)
    data = _sliced(node, data, [replace(part, step=1) if part.backwards else part for part in parts])
    for part in parts:
        if part.backwards:
            data = node.emit(op.flip(data, part.axis))
    # The axis is at most as long as it was, and the slice ends where it does.
    stepped = [part for part in parts if part.backwards and part.step > 1]
    data = _sliced(node, data, [replace(part, begin=0, end=node.shape(0)[part.axis]) for part in stepped])
    dropped = [part.axis for part in parts if part.alone]
    if dropped:
        data = node.emit(op.squeeze(data, dropped))
    return node.emit(op.expand_dims(data, added)) if added else data


def _check_masks(options: Any, count: int) -> None:
    """Raise ValueError if a slice from places of the run has an entry that its masks do not replace."""
    for number in range(count):
        is_whole = (options.BeginMask() & options.EndMask()) >> number & 1
        if _kind(options, number) == "part" and not is_whole:
            raise ValueError(
                "the run computes its begins or ends: allowed for axes that it drops, but entry "
                f"{number} keeps a part of one: cut such a part by SLICE"
            )


def _placed(node: TfliteOperands, options: Any, count: int, parts: list[_Cut]) -> Any:
    """Input 0 with one place, which the run computes, of each axis that the result drops.

    A place before the first counts from the end; one outside of the axis is the nearest one in it.
    """
    numbers = [number for number in range(count) if _kind(options, number) == "place"]
    data, shape = node.raw(0), node.shape(0)
    for number, part in zip(numbers, (part for part in parts if part.alone), strict=True):
        place, size = node.entry(1, number), shape[part.axis]
        from_end = node.bind(op.add(place, const(size, "int64")))
        place = node.bind(op.where(node.bind(op.less(place, const(0, "int64"))), from_end, place))
        data = node.bind(op.take(data, node.inside(place, size - 1), part.axis, mode="clip"))
    return data


def _sliced(node: TfliteOperands, data: Any, parts: list[_Cut]) -> Any:
    """The slice of `data` with `parts` of its axes, none of them backwards."""
    if not parts:
        return data
    columns = ([getattr(part, name) for part in parts] for name in ("axis", "begin", "end", "step"))
    return node.emit(op.strided_slice(data, *columns))


def _ends(options: Any, begin: list[int], size: list[int], step: list[int]) -> list[int]:
    """The ends of a slice whose input of ends holds lengths: each is added to its begin.

    Raises ValueError if the slice has masks too, goes backwards or begins before 0.
    """
    if any((options.BeginMask(), options.EndMask(), options.EllipsisMask(), options.NewAxisMask())):
        raise ValueError("it has an offset and masks, allowed: one of both")
    if options.ShrinkAxisMask() or min(step) < 1 or min(begin) < 0:
        raise ValueError("it has an offset and shrinks axes, goes backwards or begins before 0")
    return [first + length for first, length in zip(begin, size, strict=True)]


def _parts(
    options: Any, shape: list[int], entries: list[tuple[int, int, int]]
) -> tuple[list[_Cut], list[int]]:
    """The parts of the axes that are not taken whole, and the positions of new axes in the result."""
    kinds = [_kind(options, number) for number in range(len(entries))]
    rest = len(shape) - sum(kind in ("part", "place") for kind in kinds)
    parts, added, axis, place = list[_Cut](), list[int](), 0, 0
    for number, (kind, entry) in enumerate(zip(kinds, entries, strict=True)):
        if kind == "all":
            axis, place = axis + rest, place + rest
        elif kind == "new":
            added.append(place)
            place += 1
        elif kind == "place":
            first = entry[0] + shape[axis] if entry[0] < 0 else entry[0]
            parts.append(_Cut(axis, first, first + 1, alone=True))
            axis += 1
        else:
            parts += _part(options, number, axis, shape[axis], entry)
            axis, place = axis + 1, place + 1
    return parts, added


def _kind(options: Any, number: int) -> str:
    """The kind of places that entry `number` of the slice selects.

    "all": every axis that has no entry; "new": a new axis of size 1; "place": one place of an axis, which the
    result does not have; "part": a part of an axis.
    """
    masks = (
        (options.EllipsisMask(), "all"),
        (options.NewAxisMask(), "new"),
        (options.ShrinkAxisMask(), "place"),
    )
    return next((kind for mask, kind in masks if mask >> number & 1), "part")


def _part(options: Any, number: int, axis: int, size: int, entry: tuple[int, int, int]) -> Iterator[_Cut]:
    """The part of `axis` that entry `number` selects; nothing where it selects the whole axis.

    An end after the last place is left as it is.
    """
    step = entry[2]
    if step == 0:
        raise ValueError(f"its step along axis {axis} is 0, allowed: other numbers")
    first, last = (limit + size if limit < 0 else limit for limit in entry[:2])
    whole_begin, whole_end = options.BeginMask() >> number & 1, options.EndMask() >> number & 1
    if step < 0:
        begin, end = 0 if whole_end else max(last + 1, 0), size if whole_begin else first + 1
    else:
        begin, end = 0 if whole_begin else max(first, 0), size if whole_end else last
    if (begin, end, step) != (0, size, 1):
        yield _Cut(axis, begin, max(end, begin), abs(step), step < 0)


def slice_(node: TfliteOperands) -> Any:
    """SLICE from a place that is known only in the run. TVM converts slices from constant places.

    A slice that would reach out of the tensor begins earlier, at the last place from which it fits: LiteRT
    would read memory outside of the tensor.
    """
    if node.array(1) is not None:
        return None
    result, sliced = node.result_shape(), node.raw(0)
    for axis, (size, length) in enumerate(zip(node.shape(0), result, strict=True)):
        if length != size:
            start = node.inside(node.entry(1, axis), size - length)
            positions = node.bind(op.add(const(np.arange(length), "int64"), start))
            sliced = node.bind(op.take(sliced, positions, axis, mode="clip"))
    return sliced


CONVERTERS: dict[str, Callable[[TfliteOperands], Any]] = {"SLICE": slice_, "STRIDED_SLICE": strided_slice}
