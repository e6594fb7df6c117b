"""Traffic files: how often a model was called with each combination of sizes.

A CSV file with a header: one column per dimension, and `count`. The runtime writes it when it records
traffic; it may also be written by hand. Counts of rows with equal sizes are added. A row without sizes counts
the calls that the runtime could not record because its table was full.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kiln.errors import KilnError
from kiln.runtime.traffic import COUNT, TrafficCounts, read_counts, table_of, whole_number


@dataclass(frozen=True)
class Range:
    """The allowed sizes of a dimension: multiples of `multiple` from `least` to `greatest`."""

    least: int
    greatest: int
    multiple: int = 1


@dataclass(frozen=True)
class Traffic:
    """Number of calls by combination of sizes.

    rows: from sizes, in the order of `dims`, to the number of calls. missed: calls of unknown sizes.
    """

    dims: tuple[str, ...]
    rows: Mapping[tuple[int, ...], int]
    missed: int = 0

    def of(self, dim: str) -> dict[int, int]:
        """The recorded sizes of dimension `dim`, ascending, and the number of calls with each."""
        axis, counts = self.dims.index(dim), dict[int, int]()
        for sizes, count in self.rows.items():
            counts[sizes[axis]] = counts.get(sizes[axis], 0) + count
        return dict(sorted(counts.items()))


def read_checked(path: str | Path, ranges: Mapping[str, Range]) -> TrafficCounts:
    """The counts of a traffic file, also of one in which nothing was counted; raises as `read_traffic`."""
    allowed = ", ".join([*ranges, COUNT])

    def check(where: str, name: str, size: int | None) -> None:
        if name not in ranges:
            raise KilnError(f"{where}: no dimension '{name}', allowed: {allowed}")
        if size is not None:
            _check(where, name, size, ranges[name])

    return read_counts(Path(path), check)


def read_traffic(path: str | Path, ranges: Mapping[str, Range]) -> Traffic:
    """Read a traffic file; `ranges`: the dimensions of the model, at least one of which has a column.

    Raises KilnError, with the file's line number, for a malformed file and for a size outside the range of
    its dimension or not a multiple of its step; also where no row has a count above 0.
    """
    counts = read_checked(path, ranges)
    rows = {sizes: count for sizes, count in sorted(counts.rows.items()) if count}
    if not rows:
        raise KilnError(f"{path}: nothing was counted: no row with a count above 0")
    return Traffic(counts.dims, rows, counts.missed)


def read_costs(path: str | Path, dim: str) -> dict[int, tuple[float, float | None]]:
    """Read measured times: by size, nanoseconds of the exact and of the dynamic-shape function (or None).

    The columns are the name of the dimension, `nanoseconds` and, optionally, `open_nanoseconds`. Raises
    KilnError for a malformed file, a size that occurs twice, and fewer than two sizes.
    """
    lines = table_of(Path(path))
    header = [word.strip() for word in next(lines, ("0", []))[1]]
    kinds = ["nanoseconds", "open_nanoseconds"]
    if sorted(header) not in (sorted([dim, *kinds]), sorted([dim, kinds[0]])):
        raise KilnError(
            f"{path}:1: columns {', '.join(header) or 'none'}, expected: {dim}, nanoseconds, and if measured "
            "open_nanoseconds"
        )
    times_of: dict[int, tuple[float, float | None]] = {}
    for line, words in lines:
        where = f"{path}:{line}"
        if len(words) != len(header):
            raise KilnError(f"{where}: {len(words)} values, expected {len(header)}: {', '.join(header)}")
        row = dict(zip(header, words, strict=True))
        size = whole_number(where, dim, row[dim])
        times = [_time(where, kind, row[kind]) for kind in kinds if kind in row]
        if size in times_of:
            raise KilnError(f"{where}: {dim} {size} occurs twice")
        times_of[size] = (times[0], times[1] if len(times) > 1 else None)
    if len(times_of) < 2:
        raise KilnError(f"{path}: {len(times_of)} measured sizes, at least 2 expected")
    return dict(sorted(times_of.items()))


def _time(where: str, kind: str, word: str) -> float:
    try:
        time = float(word)
    except ValueError:
        raise KilnError(f"{where}: {kind} '{word}' is not a number") from None
    if not 0 < time < float("inf"):
        raise KilnError(f"{where}: {kind} {time:g}, above 0 expected")
    return time


def _check(where: str, name: str, size: int, allowed: Range) -> None:
    if not allowed.least <= size <= allowed.greatest:
        raise KilnError(f"{where}: {name} = {size}, allowed {allowed.least}..{allowed.greatest}")
    if size % allowed.multiple:
        raise KilnError(f"{where}: {name} = {size} is not a multiple of {allowed.multiple}")
