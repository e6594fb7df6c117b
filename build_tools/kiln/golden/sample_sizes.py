"""Sample sizes of test cases: the least, an inner and the greatest sizes of each bucket, and refused sizes.

Buckets overlap, and the first bucket whose box contains the sizes serves them. So another bucket may serve a
corner of a bucket's box; then the nearest sizes that this bucket serves are used in place of the corner.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kiln.config.boxes import Box
from kiln.config.dims import Segment
from kiln.config.interface import Dimension

Sizes = dict[str, int]

_MOST_CHARACTERS = 44  # of the 100 of a file's name in an archive
_MOST_TRIED = 20_000  # combinations of sizes that are examined; real models need a handful
_MOST_REFUSED = 4  # combinations of sizes without a bucket that are tested


@dataclass(frozen=True)
class Refusal:
    """Sizes that the runtime must refuse because of dimension `dim`, and the status it must return."""

    dim: str
    sizes: Sizes
    status: str


def contains(bucket: Box, sizes: Mapping[str, int]) -> bool:
    """Whether `sizes` are inside the bucket's box."""
    return all(segment.min <= sizes[name] <= segment.max for name, segment in bucket.dims.items())


def serving_bucket(buckets: Sequence[Box], sizes: Mapping[str, int]) -> int | None:
    """The index of the first bucket whose box contains `sizes`; None if there is no such bucket."""
    return next((index for index, bucket in enumerate(buckets) if contains(bucket, sizes)), None)


def sample_sizes(buckets: Sequence[Box], index: int) -> list[Sizes]:
    """The least, an inner and the greatest sizes that bucket `index` serves, without duplicates.

    Empty where earlier buckets serve all sizes of the bucket. A bucket without dimensions has one entry, {}.
    """
    segments = buckets[index].dims
    samples: list[Sizes] = []
    for target in (
        {name: segment.min for name, segment in segments.items()},
        {name: _inner(segment) for name, segment in segments.items()},
        {name: segment.max for name, segment in segments.items()},
    ):
        nearest = _nearest(buckets, index, target)
        if nearest is not None and nearest not in samples:
            samples.append(nearest)
    return samples


def name_of(sizes: Mapping[str, int]) -> str:
    """A name of `sizes` for file names, such as `batch1_seq17`; empty without dimensions.

    It is short enough for a member of an archive that any tar can read, after which the name of the input set
    and of the tensor follow: the sizes alone where their dimensions have long names, or a digest of all.
    """
    named = "_".join(f"{name}{size}" for name, size in sizes.items())
    if len(named) <= _MOST_CHARACTERS:
        return named
    numbers = "_".join(("sizes", *map(str, sizes.values())))
    if len(numbers) <= _MOST_CHARACTERS:
        return numbers
    return f"sizes_{hashlib.sha256(named.encode()).hexdigest()[:16]}"


def refusals(dims: Sequence[Dimension], buckets: Sequence[Box], allowed: Sizes) -> list[Refusal]:
    """Refused sizes: one step outside each dimension's range, off its multiple, and without a bucket.

    `allowed`: allowed sizes, of which one at a time is replaced by a refused one.
    """
    refused = []
    for dim in dims:
        name, least, greatest, multiple = dim.name, dim.min, dim.max, dim.multiple
        refused.append(Refusal(name, {**allowed, name: least - 1}, "KILN_DIM_RANGE"))
        refused.append(Refusal(name, {**allowed, name: greatest + 1}, "KILN_DIM_RANGE"))
        if multiple > 1 and least < greatest:
            refused.append(Refusal(name, {**allowed, name: least + 1}, "KILN_DIM_MULTIPLE"))
    unserved = (sizes for sizes in _cells(dims, buckets) if serving_bucket(buckets, sizes) is None)
    for sizes in itertools.islice(unserved, _MOST_REFUSED):
        changed = next((name for name, size in sizes.items() if size != allowed[name]), dims[0].name)
        refused.append(Refusal(changed, sizes, "KILN_NO_BUCKET"))
    return refused


def _inner(segment: Segment) -> int:
    """A size near the middle of the range; if possible an odd multiple, so that kernels have remainders."""
    least, greatest, multiple = segment.min, segment.max, segment.multiple
    middle = (least + greatest) // 2 // multiple * multiple
    if middle // multiple % 2 == 0 and middle + multiple < greatest:
        middle += multiple
    return max(middle, least)


def _nearest(buckets: Sequence[Box], index: int, target: Sizes) -> Sizes | None:
    """The sizes nearest to `target` that bucket `index` serves; None if there are none.

    The distance is the sum over the dimensions of |size - target| / width of the bucket's box. Candidates are
    `target`, the box's corners and the edges of earlier buckets; combinations are examined nearest first.
    """
    segments, names = buckets[index].dims, list(buckets[index].dims)
    axes = []
    for name in names:
        low, high, multiple = segments[name].min, segments[name].max, segments[name].multiple
        sizes = {target[name], low, high}
        for other in buckets[:index]:
            sizes |= {other.dims[name].min - multiple, other.dims[name].max + multiple}
        width = max(high - low, 1)
        axes.append(sorted((abs(s - target[name]) / width, s) for s in sizes if low <= s <= high))
    heap: list[tuple[float, tuple[int, ...]]] = [(0.0, (0,) * len(names))]
    visited = {heap[0][1]}
    for _ in range(_MOST_TRIED):
        if not heap:
            return None
        _, indices = heapq.heappop(heap)
        sizes_at = {name: axis[i][1] for name, axis, i in zip(names, axes, indices, strict=True)}
        if serving_bucket(buckets, sizes_at) == index:
            return sizes_at
        for axis in range(len(names)):
            step = (*indices[:axis], indices[axis] + 1, *indices[axis + 1 :])
            if step[axis] < len(axes[axis]) and step not in visited:
                visited.add(step)
                heapq.heappush(heap, (sum(a[i][0] for a, i in zip(axes, step, strict=True)), step))
    return None


def _cells(dims: Sequence[Dimension], buckets: Sequence[Box]) -> Iterator[Sizes]:
    """Combinations of sizes next to the buckets' edges and at the dimensions' ends, at most _MOST_TRIED."""
    axes = []
    for dim in dims:
        name, multiple = dim.name, dim.multiple
        edges = {dim.min, dim.max}
        for bucket in buckets:
            edges |= {bucket.dims[name].min - multiple, bucket.dims[name].max + multiple}
        axes.append(sorted(edge for edge in edges if dim.min <= edge <= dim.max))
    combinations = itertools.islice(itertools.product(*axes), _MOST_TRIED)
    return (dict(zip([dim.name for dim in dims], sizes, strict=True)) for sizes in combinations)
