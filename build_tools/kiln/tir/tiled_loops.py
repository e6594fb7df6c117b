"""Loops over tasks, and over the blocks of a tiled axis; statements under conditions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx.script.builder import ir as builder

from kiln.extents import Extent
from kiln.tir.builder import bind, divide, int64, modulo, serial
from kiln.tir.symbols import is_dynamic

Visit = Callable[[Expr, int], None]


def tasks_of(count: Extent, split: bool, begin: Expr, end: Expr) -> Any:
    """A loop over the tasks of this call: [begin, end) when the kernel is split, else all `count`."""
    return builder.serial(begin, end) if split else serial(count)


def share_of(task: Expr, count: Extent, tasks: int) -> tuple[Expr, Expr]:
    """The share of task number `task` of `tasks` that divide `count` items: the first item, and the end."""
    first, end = (bind(divide((task + int64(n)) * int64(count), tasks)) for n in range(2))
    return first, end


def shared_items(
    count: Extent, tasks: int | None, begin: Expr, end: Expr, visit: Callable[[Expr, Expr], None]
) -> None:
    """Call visit(item, task) for each of `count` items that tasks share, in tasks [begin, end) of them.

    `tasks`: number of tasks; None: one call, whose items all have task 0.
    """
    if tasks is None:
        with serial(count) as item:
            visit(item, int64(0))
        return
    with tasks_of(tasks, True, begin, end) as task:
        first, after = share_of(task, count, tasks)
        with serial(after - first) as index:
            visit(first + index, task)


def blocks(extent: Extent, size: int, visit: Visit) -> None:
    """Call visit(first, length) for each block of `size` in [0, extent); the last block may be shorter."""
    if is_dynamic(extent):
        with serial(divide(extent, size)) as index:
            visit(index * int64(size), size)
        remainder(extent, size, visit)
        return
    whole_blocks = extent // size
    if whole_blocks:
        with serial(whole_blocks) as index:
            visit(index * int64(size), size)
    if extent % size:
        visit(int64(whole_blocks * size), extent % size)


def remainder(extent: Extent, size: int, visit: Visit) -> None:
    """Call visit(first, length) for the remainder of a dynamic extent after its last whole block.

    The remainder is cut into lengths that are powers of two.
    """
    size_of_rest = modulo(extent, size)
    width = 1
    while width * 2 < size:
        width *= 2
    while width and size > 1:
        first = extent - modulo(size_of_rest, 2 * width)
        with builder.If(modulo(divide(size_of_rest, width), 2) == int64(1)), builder.Then():
            visit(bind(first), width)
        width //= 2


def task_blocks(extent: Extent, size: int, split: bool, begin: Expr, end: Expr, visit: Visit) -> None:
    """Call visit(first, length) for each block of `size` in [0, extent); the last block may be shorter."""
    if not split:
        blocks(extent, size, visit)
        return
    if is_dynamic(extent):
        whole_blocks = divide(extent, size)
        with builder.serial(begin, tirx.max(begin, tirx.min(end, whole_blocks))) as index:
            visit(index * int64(size), size)
        with builder.If(end > whole_blocks), builder.Then():
            remainder(extent, size, visit)
        return
    whole_blocks = extent // size
    if whole_blocks:
        with builder.serial(begin, tirx.min(end, int64(whole_blocks))) as index:
            visit(index * int64(size), size)
    if extent % size:
        with builder.If(end > int64(whole_blocks)), builder.Then():
            visit(int64(whole_blocks * size), extent % size)


def when(conditions: list[Expr], then: Callable[[], None]) -> None:
    """Emit the statements of `then()` under the condition that all of `conditions` hold."""
    if not conditions:
        then()
        return
    with builder.If(conditions[0] if len(conditions) == 1 else tirx.all(*conditions)), builder.Then():
        then()
