"""Loops over tasks, and over the two axes of a tiled matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as builder

from kiln.kernels.kernel import Expr, int64, serial

Visit = Callable[[Expr, int], None]


def tasks_of(count: int, split: bool, begin: Expr, end: Expr) -> Any:
    """A loop over the tasks of this call: [begin, end) when the kernel is split, else all `count`."""
    return builder.serial(begin, end) if split else serial(count)


def blocks(extent: int, size: int, visit: Visit) -> None:
    """visit(first, length) for each block of `size` in [0, extent), the last one possibly shorter."""
    whole = extent // size
    if whole:
        with serial(whole) as index:
            visit(index * int64(size), size)
    if extent % size:
        visit(int64(whole * size), extent % size)


def task_blocks(extent: int, size: int, split: bool, begin: Expr, end: Expr, visit: Visit) -> None:
    """Like `blocks`, for those blocks whose number lies in [begin, end) when the kernel is split."""
    if not split:
        blocks(extent, size, visit)
        return
    whole = extent // size
    if whole:
        with builder.serial(begin, tirx.min(end, int64(whole))) as index:
            visit(index * int64(size), size)
    if extent % size:
        with builder.If(end > int64(whole)), builder.Then():
            visit(int64(whole * size), extent % size)
