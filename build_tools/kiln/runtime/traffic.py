"""Traffic files: how often a model ran with each combination of sizes; read, added up, written.

A CSV file with a column for each dimension, and `count`, as kiln_traffic_write of the C runtime writes it
too. A row without sizes counts runs of unknown sizes. The columns <input>:zeros, <input>:ones and
<input>:other, where they are there, count the row's runs by what the input's elements were.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from kiln.errors import KilnError
from kiln.files import atomic_write
from kiln.runtime.arrays import Tensor

COUNT = "count"
CONTENTS = ("zeros", "ones", "other")
_MOST_DIGITS = 18  # of a size or a count; Python converts longer text in quadratic time


@dataclass
class TrafficCounts:
    """Number of runs by sizes, in the order of `dims`; `missed`: runs of unknown sizes.

    `contents` has, by sizes and input, the numbers of runs whose elements were all 0, all 1, and others.
    """

    dims: tuple[str, ...]
    rows: dict[tuple[int, ...], int] = field(default_factory=dict)
    missed: int = 0
    contents: dict[tuple[tuple[int, ...], str], tuple[int, ...]] = field(default_factory=dict)

    def count(self, sizes: tuple[int, ...], inputs: Mapping[str, Tensor], times: int = 1) -> None:
        """Count `times` runs of these sizes; `inputs`: by name, the inputs whose contents are counted."""
        self.rows[sizes] = self.rows.get(sizes, 0) + times
        for name, tensor in inputs.items():
            content = content_of(tensor)
            if content is not None:
                self._add_contents(sizes, name.strip(), [times * (content == kind) for kind in CONTENTS])

    def add(self, other: TrafficCounts) -> None:
        """Add the runs of `other`, whose dimensions are the same in any order.

        Raises KilnError where `other` has other dimensions.
        """
        if sorted(other.dims) != sorted(self.dims):
            dims_of_other, expected = (", ".join(one.dims) or "no dimensions" for one in (other, self))
            raise KilnError(f"traffic of {dims_of_other}, expected {expected}")
        order = [other.dims.index(name) for name in self.dims]
        for sizes, count in other.rows.items():
            key = tuple(sizes[axis] for axis in order)
            self.rows[key] = self.rows.get(key, 0) + count
        for (sizes, name), counts in other.contents.items():
            self._add_contents(tuple(sizes[axis] for axis in order), name, counts)
        self.missed += other.missed

    def _add_contents(self, sizes: tuple[int, ...], name: str, counts: Sequence[int]) -> None:
        before = self.contents.get((sizes, name), (0, 0, 0))
        self.contents[sizes, name] = tuple(a + b for a, b in zip(before, counts, strict=True))

    def of_inputs(self) -> dict[str, dict[str, int]]:
        """The numbers of runs in which the elements of an input were all 0, all 1, and others, by input."""
        totals: dict[str, dict[str, int]] = {}
        for (_, name), counts in sorted(self.contents.items(), key=lambda item: item[0][1]):
            total = totals.setdefault(name, dict.fromkeys(CONTENTS, 0))
            for kind, count in zip(CONTENTS, counts, strict=True):
                total[kind] += count
        return totals

    def text(self) -> str:
        """The content of a traffic file, rows sorted by sizes."""
        out = io.StringIO()
        table = csv.writer(out, lineterminator="\n")
        inputs = sorted({name for _, name in self.contents})
        table.writerow([*self.dims, COUNT, *(f"{name}:{kind}" for name in inputs for kind in CONTENTS)])
        for sizes, count in sorted(self.rows.items()):
            counts = [self.contents.get((sizes, name), ("", "", "")) for name in inputs]
            table.writerow([*sizes, count, *(one for three in counts for one in three)])
        if self.missed:
            table.writerow([*[""] * len(self.dims), self.missed, *[""] * (3 * len(inputs))])
        return out.getvalue()


def content_of(tensor: Tensor) -> str | None:
    """The kind of content of an input, one of CONTENTS, as its elements are stored; None without elements.

    Elements are compared as bytes, as special cases are at run time: -0.0 does not count as zero.
    """
    if tensor.size == 0:
        return None
    first = tensor.flat[0]
    for kind, value in (("zeros", 0), ("ones", 1)):
        element = np.asarray(value).astype(tensor.dtype)
        if first.tobytes() == element.tobytes():
            plain = np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).reshape(tensor.size, -1)
            return kind if (plain == np.frombuffer(element.tobytes(), np.uint8)).all() else "other"
    return "other"


def read_counts(path: Path, check: Callable[[str, str, int | None], None] = lambda *_: None) -> TrafficCounts:
    """Read a traffic file. Raises KilnError with the line for one that is malformed.

    `check` is called with a place in the file, the name of a column, and a size: None for the header. It
    raises KilnError for a dimension or a size that the caller does not accept.
    """
    lines = table_of(path)
    header = [word.strip() for word in next(lines, ("1", []))[1]]
    inputs = _inputs(path, header)
    columns = {f"{name}:{kind}" for name in inputs for kind in CONTENTS}
    dims = tuple(name for name in header if name != COUNT and name not in columns)
    if COUNT not in header or not (dims or inputs):
        got = ",".join(header) or "none"
        raise KilnError(f"{path}:1: a header with a dimension and '{COUNT}' expected, got: {got}")
    for name in dims:
        check(f"{path}:1", name, None)
    if len(set(header)) != len(header):
        raise KilnError(f"{path}:1: a column occurs twice: {', '.join(header)}")
    counts = TrafficCounts(dims)
    for line, words in lines:
        where = f"{path}:{line}"
        if len(words) != len(header):
            raise KilnError(f"{where}: {len(words)} values, expected {len(header)}: {', '.join(header)}")
        row = dict(zip(header, (word.strip() for word in words), strict=True))
        count = whole_number(where, COUNT, row[COUNT])
        if dims and not any(row[name] for name in dims):
            counts.missed += count
            continue
        sizes = tuple(whole_number(where, name, row[name]) for name in dims)
        for name, size in zip(dims, sizes, strict=True):
            check(where, name, size)
        counts.rows[sizes] = counts.rows.get(sizes, 0) + count
        _read_contents(where, row, inputs, sizes, counts)
    return counts


def _inputs(path: Path, header: Sequence[str]) -> list[str]:
    """The inputs whose contents a file counts. Raises KilnError where one of its columns is missing."""
    parts = [word.rpartition(":") for word in header]
    inputs = list(dict.fromkeys(name for name, _, kind in parts if name and kind in CONTENTS))
    for name in inputs:
        for kind in CONTENTS:
            if f"{name}:{kind}" not in header:
                raise KilnError(
                    f"{path}:1: the column {name}:{kind} is missing, unlike the other columns of '{name}'"
                )
    return inputs


def _read_contents(
    where: str, row: Mapping[str, str], inputs: Sequence[str], sizes: tuple[int, ...], found: TrafficCounts
) -> None:
    """Add the contents that a row counts. Raises KilnError for more of them than the row has runs."""
    for name in inputs:
        counts = [whole_number(where, f"{name}:{kind}", row[f"{name}:{kind}"] or "0") for kind in CONTENTS]
        if sum(counts) > int(row[COUNT]):
            raise KilnError(f"{where}: {sum(counts)} contents of '{name}' in {row[COUNT]} runs")
        if any(counts):
            found._add_contents(sizes, name, counts)


def table_of(path: Path) -> Iterator[tuple[str, list[str]]]:
    """The lines of a CSV file that are not empty: (line number, words). Raises KilnError."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise KilnError(f"{path}: cannot read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise KilnError(f"{path}: not a CSV file: it is not text in UTF-8") from None
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for words in reader:
            if any(word.strip() for word in words):
                yield str(reader.line_num), words
    except csv.Error as error:
        raise KilnError(f"{path}:{reader.line_num}: not a CSV file: {error}") from None


def whole_number(where: str, name: str, word: str) -> int:
    """A size or a count from 0 on. Raises KilnError that begins with `where`, the place in the file."""
    digits = word.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS):
        raise KilnError(
            f"{where}: {name} '{digits[:40]}' is not a whole number of at most {_MOST_DIGITS} digits"
        )
    return int(digits)


def add_to_file(path: Path, counts: TrafficCounts) -> None:
    """Add runs to the traffic file `path`, which is made where it does not exist.

    Processes that add to files of one folder at the same time do so one after the other. Raises KilnError,
    and leaves the file as it is, where it is malformed or has other dimensions.
    """
    total = TrafficCounts(counts.dims)
    total.add(counts)
    with _locked(path.parent):
        if path.is_file():
            try:
                total.add(read_counts(path))
            except KilnError as error:
                raise KilnError(str(error) if str(path) in str(error) else f"{path}: {error}") from None
        atomic_write(path, total.text())


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a lock of `folder` itself, so that no other file is left in it; none where there are no locks."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError, OSError):  # Windows; a folder that is missing: writing tells it
            import fcntl

            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Not by closing alone: a process forked in the meantime has the descriptor, too.
            stack.callback(fcntl.flock, descriptor, fcntl.LOCK_UN)
        yield


def merged(paths: Iterable[Path]) -> TrafficCounts:
    """The runs of several traffic files together. Raises KilnError naming the file with other dimensions."""
    first, *others = paths
    total = read_counts(first)
    for path in others:
        try:
            total.add(read_counts(path))
        except KilnError as error:
            raise KilnError(
                str(error) if str(path) in str(error) else f"{path}: {error}, as in {first}"
            ) from None
    return total
