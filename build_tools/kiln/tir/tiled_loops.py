"""Loops over tasks, and over the two axes of a tiled matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as builder

from kiln.tir.builder import Expr, bind, divide, int64, modulo, serial
from kiln.tir.symbols import Extent, is_open

Visit = Callable[[Expr, int], None]


def tasks_of(count: Extent, split: bool, begin: Expr, end: Expr) -> Any:
    """A loop over the tasks of this call: [begin, end) when the kernel is split, else all `count`."""
    return builder.serial(begin, end) if split else serial(count)


def blocks(extent: Extent, size: int, visit: Visit) -> None:
    """visit(first, length) for each block of `size` in [0, extent), the last one possibly shorter."""
    if is_open(extent):
        with serial(divide(extent, size)) as index:
            visit(index * int64(size), size)
        remainder(extent, size, visit)
        return
    whole = extent // size
    if whole:
        with serial(whole) as index:
            visit(index * int64(size), size)
    if extent % size:
        visit(int64(whole * size), extent % size)


def remainder(extent: Extent, size: int, visit: Visit) -> None:
    """visit(first, length) for what an open extent leaves behind its last whole block, in powers of two."""
    left = modulo(extent, size)
    width = 1
    while width * 2 < size:
        width *= 2
    while width and size > 1:
        first = extent - modulo(left, 2 * width)
        with builder.If(modulo(divide(left, width), 2) == int64(1)), builder.Then():
            visit(bind(first), width)
        width //= 2


def task_blocks(extent: Extent, size: int, split: bool, begin: Expr, end: Expr, visit: Visit) -> None:
    """Like `blocks`, for those blocks whose number lies in [begin, end) when the kernel is split."""
    if not split:
        blocks(extent, size, visit)
        return
    if is_open(extent):
        whole_blocks = divide(extent, size)
        with builder.serial(begin, tirx.max(begin, tirx.min(end, whole_blocks))) as index:
            visit(index * int64(size), size)
        with builder.If(end > whole_blocks), builder.Then():
            remainder(extent, size, visit)
        return
    whole = extent // size
    if whole:
        with builder.serial(begin, tirx.min(end, int64(whole))) as index:
            visit(index * int64(size), size)
    if extent % size:
        with builder.If(end > int64(whole)), builder.Then():
            visit(int64(whole * size), extent % size)
