"""Bucket selection as C: for each dimension a tree of comparisons, then one table lookup.

Every dimension is cut at the edges of all buckets, so that no bucket's edge is inside a cell; a tree of
O(log n) comparisons finds the cell of each dimension, and the table has the bucket of each combination.
Where buckets overlap, the one listed first is used. Special cases of a bucket, which also depend on the
content of an input, are not selected here (see cases.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from kiln.config.interface import Dimension
from kiln.config.sizes import ceil_div
from kiln.emit.plan_ports import DimensionCode
from kiln.errors import KilnError
from kiln.plan.schema import AcceptedSizes, PlannedBucket

_MOST_CELLS = 1 << 16

DimensionRange = Dimension | DimensionCode


@dataclass(frozen=True)
class Axis:
    """One dimension: `lines` of the body of the C function that finds a size's cell; number of `cells`."""

    name: str
    lines: list[str]
    cells: int


@dataclass(frozen=True)
class Selection:
    """Axes and lookup table of the bucket selection.

    `table`: the bucket's index for each combination of cells, row-major in `axes`; -1 where no bucket fits.
    """

    axes: list[Axis]
    table: list[int]


def selection(dims: Sequence[DimensionRange], buckets: Sequence[PlannedBucket]) -> Selection | None:
    """Build the selection for `dims` and `buckets` of plan.json.

    Returns None if the first bucket accepts every size that the dimensions allow. Raises KilnError for
    invalid buckets and for too many cells.
    """
    ranges = {
        number: [bucket_range(bucket, dim) for dim in dims]
        for number, bucket in enumerate(buckets)
        if bucket.when is None
    }
    cuts = []
    for index, dim in enumerate(dims):
        edges = {edge for row in ranges.values() for edge in (row[index][0], row[index][1] + 1)}
        cuts.append([dim.min, *sorted(edge for edge in edges if dim.min < edge <= dim.max)])
    cells = 1
    for cut in cuts:
        cells *= len(cut)
    if cells > _MOST_CELLS:
        raise KilnError(f"plan.json: buckets cut the dimensions into {cells} cells, allowed {_MOST_CELLS}")
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
    axes = [Axis(dim.name, _tree(cut, 0, 1), len(cut)) for dim, cut in zip(dims, cuts, strict=True)]
    return Selection(axes, table)


def bucket_range(bucket: PlannedBucket, dim: DimensionRange) -> tuple[int, int]:
    """Least and greatest size of `dim` that the bucket accepts. Raises KilnError if it exceeds the dimension.

    A bucket without a range for the dimension accepts all sizes of the dimension.
    """
    chosen = bucket.dims.get(dim.name, AcceptedSizes(min=dim.min, max=dim.max))
    low, high, multiple = chosen.min, chosen.max, chosen.multiple
    if not dim.min <= low <= high <= dim.max:
        raise KilnError(
            f"plan.json: bucket '{bucket.name}', dimension '{dim.name}': {low}..{high}, "
            f"allowed within {dim.min}..{dim.max}"
        )
    # Selection compares ranges only: a bucket must accept all sizes in its range that the dimension allows.
    if (low % multiple if low == high else dim.multiple % multiple) != 0:
        raise KilnError(
            f"plan.json: bucket '{bucket.name}', dimension '{dim.name}': multiple {multiple}, "
            f"allowed: what divides {dim.multiple}, the dimension's own"
        )
    return low, high


def bucket_box(bucket: PlannedBucket, dims: Sequence[DimensionRange]) -> list[int] | None:
    """Least and greatest size of each dimension that both bucket and dimension allow, in one flat list.

    None for a special case, and if a dimension has no such size.
    """
    if bucket.when is not None:
        return None
    box: list[int] = []
    for dim in dims:
        low, high = bucket_range(bucket, dim)
        least, most = ceil_div(low, dim.multiple) * dim.multiple, high // dim.multiple * dim.multiple
        if least > most:
            return None
        box += [least, most]
    return box


def _tree(cut: Sequence[int], first: int, depth: int) -> list[str]:
    """C lines that return the cell of `size`, by binary search over the lower edges `cut`."""
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
