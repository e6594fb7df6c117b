"""The limits of CUDA on the blocks of a launch: 2^31 - 1 along x, 65,535 along y and z.

They are those of the CUDA C++ Programming Guide. dlight's schedules of products put the batch, or columns,
along y. A launch with more of them than y takes exchanges its axes x and y.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from kiln.callbacks import structural_map

MOST_ALONG = (2**31 - 1, 65535, 65535)
_OTHER = {"blockIdx.x": "blockIdx.y", "blockIdx.y": "blockIdx.x"}
Grid = tuple[Any, Any, Any]


def within_limits(func: tirx.PrimFunc, grid: Grid, size: Callable[[Any], int]) -> tuple[tirx.PrimFunc, Grid]:
    """A device function and its numbers of blocks, in an order of axes that CUDA launches.

    `size` returns the greatest value of an extent. Raises ValueError if neither order is launched.
    """
    most = [extent if isinstance(extent, int) else size(extent) for extent in grid]
    if _fits(most):
        return func, grid
    if not _fits([most[1], most[0], most[2]]):
        raise ValueError(
            f"it needs {most} blocks of threads, allowed: {list(MOST_ALONG)}; make its tensors smaller"
        )
    x, y, z = grid
    return func.with_body(structural_map(func.body, [(tirx.AttrStmt, _exchanged)])), (y, x, z)


def _fits(blocks: list[int]) -> bool:
    return all(count <= limit for count, limit in zip(blocks, MOST_ALONG, strict=True))


def _exchanged(node: Any) -> Any:
    """The declaration of a block's index along x or y as one along the other axis."""
    if node.attr_key != "thread_extent" or node.node.thread_tag not in _OTHER:
        return node
    axis = node.node
    other = tirx.IterVar(axis.dom, axis.var, axis.iter_type, _OTHER[axis.thread_tag])
    return tirx.AttrStmt(other, node.attr_key, node.value, node.body)
