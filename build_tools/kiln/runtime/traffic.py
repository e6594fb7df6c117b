"""Traffic files: how often a model ran with each combination of sizes; read, added up, written.

A CSV file with a column for each dimension, and `count`, as kiln_traffic_write of the C runtime writes it
too. A row without sizes counts runs of unknown sizes.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kiln.errors import KilnError
from kiln.files import atomic_write

COUNT = "count"
_MOST_DIGITS = 18  # of a size or a count; Python converts longer text in quadratic time


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


def read_counts(path: Path, check: Callable[[str, str, int | None], None] = lambda *_: None) -> TrafficCounts:
    """Read a traffic file. Raises KilnError with the line for one that is malformed.

    `check` is called with a place in the file, the name of a column, and a size: None for the header. It
    raises KilnError for a dimension or a size that the caller does not accept.
    """
    lines = table_of(path)
    header = [word.strip() for word in next(lines, ("1", []))[1]]
    dims = tuple(name for name in header if name != COUNT)
    if COUNT not in header or not dims:
        got = ",".join(header) or "none"
        raise KilnError(f"{path}:1: a header with a dimension and '{COUNT}' expected, got: {got}")
    for name in dims:
        check(f"{path}:1", name, None)
    if len(set(header)) != len(header):
        raise KilnError(f"{path}:1: a column is there twice: {', '.join(header)}")
    found = TrafficCounts(dims)
    for line, words in lines:
        where = f"{path}:{line}"
        if len(words) != len(header):
            raise KilnError(f"{where}: {len(words)} values, expected {len(header)}: {', '.join(header)}")
        row = dict(zip(header, (word.strip() for word in words), strict=True))
        count = whole_number(where, COUNT, row[COUNT])
        if not any(row[name] for name in dims):
            found.missed += count
            continue
        sizes = tuple(whole_number(where, name, row[name]) for name in dims)
        for name, size in zip(dims, sizes, strict=True):
            check(where, name, size)
        found.rows[sizes] = found.rows.get(sizes, 0) + count
    return found


def table_of(path: Path) -> Iterator[tuple[str, list[str]]]:
    """The lines of a CSV file that are not empty: (line number, words). Raises KilnError."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise KilnError(f"{path}: cannot read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise KilnError(f"{path}: no CSV: it is not text in UTF-8") from None
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for words in reader:
            if any(word.strip() for word in words):
                yield str(reader.line_num), words
    except csv.Error as error:
        raise KilnError(f"{path}:{reader.line_num}: no CSV: {error}") from None


def whole_number(where: str, name: str, word: str) -> int:
    """A size or a count from 0 on. Raises KilnError that begins with `where`, the place in the file."""
    digits = word.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS):
        raise KilnError(
            f"{where}: {name} '{digits[:40]}' is not a whole number of at most {_MOST_DIGITS} digits"
        )
    return int(digits)


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
