"""Traffic files: how often a model ran with each combination of sizes; read, added up, written.

A CSV file with a column for each dimension, and `count`, as kiln_traffic_write of the C runtime writes it
too. A row without sizes counts runs of unknown sizes.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kiln.errors import KilnError
from kiln.files import atomic_write

COUNT = "count"
_MOST_DIGITS = 18


@dataclass
class TrafficCounts:
    """Number of runs by sizes, in the order of `dims`; `missed`: runs of unknown sizes."""

    dims: tuple[str, ...]
    rows: dict[tuple[int, ...], int] = field(default_factory=dict)
    missed: int = 0

    def add(self, other: TrafficCounts) -> None:
        """Add the runs of `other`, whose dimensions are the same in any order.

        Raises KilnError where `other` has other dimensions.
        """
        if sorted(other.dims) != sorted(self.dims):
            raise KilnError(f"traffic of {', '.join(other.dims)}, expected {', '.join(self.dims)}")
        order = [other.dims.index(name) for name in self.dims]
        for sizes, count in other.rows.items():
            key = tuple(sizes[axis] for axis in order)
            self.rows[key] = self.rows.get(key, 0) + count
        self.missed += other.missed

    def text(self) -> str:
        """The content of a traffic file, rows sorted by sizes."""
        out = io.StringIO()
        table = csv.writer(out, lineterminator="\n")
        table.writerow([*self.dims, COUNT])
        table.writerows([*sizes, count] for sizes, count in sorted(self.rows.items()))
        if self.missed:
            table.writerow([*[""] * len(self.dims), self.missed])
        return out.getvalue()


def read_counts(path: Path) -> TrafficCounts:
    """Read a traffic file. Raises KilnError with the line for one that is malformed."""
    try:
        lines = list(csv.reader(io.StringIO(path.read_text(encoding="utf-8-sig"), newline=""), strict=True))
    except OSError as error:
        raise KilnError(f"{path}: cannot read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise KilnError(f"{path}: no CSV: {error}") from None
    header = [word.strip() for word in lines[0]] if lines else []
    if COUNT not in header or len(header) < 2 or len(set(header)) != len(header):
        got = ",".join(header) or "none"
        raise KilnError(f"{path}:1: a header with the dimensions and '{COUNT}' expected, got: {got}")
    at = header.index(COUNT)
    found = TrafficCounts(tuple(name for name in header if name != COUNT))
    for number, words in enumerate(lines[1:], start=2):
        values = [word.strip() for word in words]
        if not any(values):
            continue
        if len(values) != len(header):
            raise KilnError(
                f"{path}:{number}: {len(values)} values, expected {len(header)}: {','.join(header)}"
            )
        count, sizes = values[at], values[:at] + values[at + 1 :]
        if not any(sizes):
            found.missed += _number(path, number, COUNT, count)
            continue
        key = tuple(_number(path, number, *pair) for pair in zip(found.dims, sizes, strict=True))
        found.rows[key] = found.rows.get(key, 0) + _number(path, number, COUNT, count)
    return found


def _number(path: Path, line: int, name: str, word: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) <= _MOST_DIGITS):
        raise KilnError(f"{path}:{line}: {name} '{word[:40]}' is not a whole number from 0 on")
    return int(word)


def add_to_file(path: Path, dims: Sequence[str], rows: Mapping[tuple[int, ...], int]) -> None:
    """Add runs to the traffic file `path`, which is made where it does not exist.

    Raises KilnError, and leaves the file as it is, where it is malformed or has other dimensions.
    """
    whole = TrafficCounts(tuple(dims), dict(rows))
    if path.is_file():
        try:
            whole.add(read_counts(path))
        except KilnError as error:
            raise KilnError(str(error) if str(path) in str(error) else f"{path}: {error}") from None
    atomic_write(path, whole.text())


def merged(paths: Iterable[Path]) -> TrafficCounts:
    """The runs of several traffic files together. Raises KilnError naming the file with other dimensions."""
    first, *others = paths
    whole = read_counts(first)
    for path in others:
        try:
            whole.add(read_counts(path))
        except KilnError as error:
            raise KilnError(
                str(error) if str(path) in str(error) else f"{path}: {error}, as in {first}"
            ) from None
    return whole
