"""Traffic files: how often a model was called with each combination of sizes.

A CSV file with a header: one column per dimension, and `count`. The runtime writes it when it records
traffic; it may also be written by hand. Counts of rows with equal sizes are added. A row without sizes counts
the calls that the runtime could not record because its table was full.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kiln.errors import KilnError

_MOST_DIGITS = 18  # of a size or a count; Python converts longer text in quadratic time

COUNT = "count"


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


def read_traffic(path: str | Path, ranges: Mapping[str, Range]) -> Traffic:
    """Read a traffic file; `ranges`: the dimensions of the model, at least one of which has a column.

    Raises KilnError, with the file's line number, for a malformed file and for a size outside the range of
    its dimension or not a multiple of its step; also where no row has a count above 0.
    """
    lines = _table(Path(path))
    header = [word.strip() for word in next(lines, ("0", []))[1]]
    dims = tuple(name for name in header if name != COUNT)
    known = ", ".join([*ranges, COUNT])
    if COUNT not in header or not dims:
        raise KilnError(f"{path}:1: a header with a dimension and '{COUNT}' expected, allowed: {known}")
    for name in dims:
        if name not in ranges:
            raise KilnError(f"{path}:1: no dimension '{name}', allowed: {known}")
    if len(set(header)) != len(header):
        raise KilnError(f"{path}:1: a column is there twice: {', '.join(header)}")
    rows: dict[tuple[int, ...], int] = {}
    missed = 0
    for line, words in lines:
        where = f"{path}:{line}"
        if len(words) != len(header):
            raise KilnError(f"{where}: {len(words)} values, expected {len(header)}: {', '.join(header)}")
        row = dict(zip(header, words, strict=True))
        if not any(row[name].strip() for name in dims):
            missed += _count(where, row[COUNT])
            continue
        values = {name: _integer(where, name, row[name]) for name in dims}
        count = _count(where, row[COUNT])
        for name in dims:
            _check(where, name, values[name], ranges[name])
        sizes = tuple(values[name] for name in dims)
        if count:
            rows[sizes] = rows.get(sizes, 0) + count
    if not rows:
        raise KilnError(f"{path}: nothing was counted: no row with a count above 0")
    return Traffic(dims, dict(sorted(rows.items())), missed)


def _count(where: str, word: str) -> int:
    count = _integer(where, COUNT, word)
    if count < 0:
        raise KilnError(f"{where}: count {count} is below 0")
    return count


def read_costs(path: str | Path, dim: str) -> dict[int, tuple[float, float | None]]:
    """Read measured times: by size, nanoseconds of the exact and of the dynamic-shape function (or None).

    The columns are the name of the dimension, `nanoseconds` and, optionally, `open_nanoseconds`. Raises
    KilnError for a malformed file, a size that occurs twice, and fewer than two sizes.
    """
    lines = _table(Path(path))
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
        size = _integer(where, dim, row[dim])
        times = [_time(where, kind, row[kind]) for kind in kinds if kind in row]
        if size in times_of:
            raise KilnError(f"{where}: {dim} {size} is there twice")
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


def _table(path: Path) -> _Lines:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise KilnError(f"{path}: cannot read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise KilnError(f"{path}: no CSV: it is not text in UTF-8") from None
    return _Lines(path, text)


class _Lines:
    """Iterator over the non-empty lines of a CSV text: (line number, words)."""

    def __init__(self, path: Path, text: str) -> None:
        self._path, self._reader = path, csv.reader(io.StringIO(text, newline=""), strict=True)

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> tuple[str, list[str]]:
        try:
            words = next(self._reader)
            while not any(word.strip() for word in words):
                words = next(self._reader)
        except csv.Error as error:
            raise KilnError(f"{self._path}:{self._reader.line_num}: no CSV: {error}") from None
        return str(self._reader.line_num), words


def _integer(where: str, name: str, word: str) -> int:
    digits = word.strip().lstrip("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > _MOST_DIGITS:
        raise KilnError(
            f"{where}: {name} '{word.strip()[:40]}' is not a whole number of at most {_MOST_DIGITS} digits"
        )
    return int(word)


def _check(where: str, name: str, size: int, allowed: Range) -> None:
    if not allowed.least <= size <= allowed.greatest:
        raise KilnError(f"{where}: {name} = {size}, allowed {allowed.least}..{allowed.greatest}")
    if size % allowed.multiple:
        raise KilnError(f"{where}: {name} = {size} is not a multiple of {allowed.multiple}")
