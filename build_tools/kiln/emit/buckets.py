"""The choice of a bucket as C: for each dimension a tree of comparisons, then one look into a table.

Every dimension is cut at the edges of all buckets, so that no bucket's edge lies inside a cell; a tree of
O(log n) comparisons finds the cell of each dimension, and the table has the bucket of each combination.
Where buckets overlap, the one listed first is taken. Special cases of a bucket, which ask for a content of an
input besides, are not chosen here.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kiln.errors import KilnError

_MOST_CELLS = 1 << 16


@dataclass(frozen=True)
class Axis:
    """One dimension: the lines of the body of its C function, and how many cells it is cut into."""

    name: str
    lines: list[str]
    cells: int


@dataclass(frozen=True)
class Selection:
    """How a bucket is found; `table` in row-major order of the axes' cells, -1 where there is none."""

    axes: list[Axis]
    table: list[int]


def selection(dims: Sequence[Mapping[str, Any]], buckets: Sequence[Mapping[str, Any]]) -> Selection | None:
    """None when the first bucket takes every size that the dimensions allow."""
    ranges = {
        number: [bucket_range(bucket, dim) for dim in dims]
        for number, bucket in enumerate(buckets)
        if bucket.get("when") is None
    }
    cuts = []
    for index, dim in enumerate(dims):
        edges = {edge for row in ranges.values() for edge in (row[index][0], row[index][1] + 1)}
        cuts.append([dim["min"], *sorted(edge for edge in edges if dim["min"] < edge <= dim["max"])])
    total = 1
    for cut in cuts:
        total *= len(cut)
    if total > _MOST_CELLS:
        raise KilnError(f"plan.json: buckets cut the dimensions into {total} cells, allowed {_MOST_CELLS}")
    table = [
        next(
            (
                number
                for number, row in ranges.items()
                if all(low <= size <= high for size, (low, high) in zip(corner, row, strict=True))
            ),
            -1,
        )
        for corner in itertools.product(*cuts)
    ]
    if not any(table):
        return None
    axes = [Axis(dim["name"], _tree(cut, 0, 1), len(cut)) for dim, cut in zip(dims, cuts, strict=True)]
    return Selection(axes, table)


def bucket_range(bucket: Mapping[str, Any], dim: Mapping[str, Any]) -> tuple[int, int]:
    """Least and greatest size of `dim` that the bucket takes: {"min", "max"}, one size, or all of them."""
    chosen = bucket["dims"].get(dim["name"], {"min": dim["min"], "max": dim["max"]})
    low, high = (chosen, chosen) if isinstance(chosen, int) else (chosen["min"], chosen["max"])
    multiple = 1 if isinstance(chosen, int) else chosen.get("multiple", 1)
    if not dim["min"] <= low <= high <= dim["max"]:
        raise KilnError(
            f"plan.json: bucket '{bucket['name']}', dimension '{dim['name']}': {low}..{high}, "
            f"allowed within {dim['min']}..{dim['max']}"
        )
    # The choice looks at ranges alone: every size that a dimension allows in one must be the bucket's.
    if (low % multiple if low == high else dim["multiple"] % multiple) != 0:
        raise KilnError(
            f"plan.json: bucket '{bucket['name']}', dimension '{dim['name']}': multiple {multiple}, "
            f"allowed: what divides {dim['multiple']}, the dimension's own"
        )
    return low, high


def bucket_box(bucket: Mapping[str, Any], dims: Sequence[Mapping[str, Any]]) -> list[int] | None:
    """Least and greatest size of each dimension in turn that the bucket takes and the dimension allows.

    None for a special case, and where no size is left.
    """
    if bucket.get("when") is not None:
        return None
    box: list[int] = []
    for dim in dims:
        low, high = bucket_range(bucket, dim)
        least, most = -(-low // dim["multiple"]) * dim["multiple"], high // dim["multiple"] * dim["multiple"]
        if least > most:
            return None
        box += [least, most]
    return box


def _tree(cut: Sequence[int], first: int, depth: int) -> list[str]:
    pad = "    " * depth
    if len(cut) == 1:
        return [f"{pad}return {first};"]
    middle = len(cut) // 2
    return [
        f"{pad}if (size < {cut[middle]}) {{",
        *_tree(cut[:middle], first, depth + 1),
        f"{pad}}} else {{",
        *_tree(cut[middle:], first + middle, depth + 1),
        f"{pad}}}",
    ]
