"""Tuning records: the schedules that `tune` measured as fastest for single kernels on a CPU.

A file tir/tuned/<cpu>-<isa>.json holds {"cpu", "isa", "kernels": {key: {…}}}. A key is an operator with its
shapes; a value holds the fields of a TuningRecord that the heuristics do not decide equally well, and the
measurement: `us` is the time in microseconds, `ratio` the time relative to the heuristics' schedule. Kernels
without a record use the heuristics: the files make known models faster, and no model needs them. The file for
a target is the file of the CPU that the target names in `tuned_for`, or else in `cpu`, and of the target's
vector unit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from kiln.config import Target
from kiln.errors import KilnError
from kiln.files import read_json

FOLDER = Path(__file__).parent / "tuned"
MEASURED = ("us", "ratio")


@dataclass(frozen=True)
class TuningRecord:
    """The tuning record of one kernel; a field that is None is left to the heuristics."""

    winograd: Literal["off", "f2", "f4"] | None = None
    block: int | None = None  # Winograd: tiles in a block; 0: a kernel for each phase
    tile: tuple[int, int] | None = None  # rows and vectors of the register tile
    part: int | None = None  # direct convolution: tiles computed with a panel before the next panel; 0: all
    fetch: int | None = None  # distance in panels at which weights are prefetched; 0: no prefetch
    strip: int | None = None  # depthwise convolution: output pixels whose sums are in registers at a time

    def describe(self) -> dict[str, Any]:
        """The fields that are set, as values for JSON."""
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
            if value is not None
        }


TuningRecords = Mapping[str, TuningRecord]

HEURISTICS = TuningRecord()


class NotedRecords(dict[str, TuningRecord]):
    """Tuning records that note for which kernels there is none."""

    def __init__(self, records: Mapping[str, TuningRecord]) -> None:
        super().__init__(records)
        self._missing: dict[str, None] = {}

    def get(self, key: str, default: Any = None) -> Any:
        if key not in self and is_key(key):
            self._missing[key] = None
        return super().get(key, default)

    @property
    def missing(self) -> list[str]:
        """Keys of the kernels that were looked up and have no record, sorted."""
        return sorted(self._missing)


_SIZES = r"[1-9][0-9]*(x[1-9][0-9]*)"
_KEY = re.compile(rf"conv2d {_SIZES}{{3}} {_SIZES}{{3}} s{_SIZES} d{_SIZES} g[1-9][0-9]*")


def key_of(
    x: Sequence[int], weights: Sequence[int], stride: Sequence[int], dilation: Sequence[int], groups: int
) -> str:
    """The key of a float32 convolution of x, shape (N,H,W,C), with weights of shape (KH,KW,C/groups,O).

    `x` is the shape that the kernel reads.
    """
    sizes = ["x".join(map(str, values)) for values in (x, weights, stride, dilation)]
    return f"conv2d {sizes[0]} {sizes[1]} s{sizes[2]} d{sizes[3]} g{groups}"


def is_key(text: str) -> bool:
    """Whether `text` is a key that `shapes_of` can read: the key of a kernel with static shapes."""
    return _KEY.fullmatch(text) is not None


def shapes_of(key: str) -> tuple[list[int], list[int], list[int], list[int], int]:
    """Inverse of `key_of`: shape of x, shape of the weights, stride, dilation, groups."""
    _, *words = key.split()
    x, weights, stride, dilation = ([int(n) for n in word.lstrip("sd").split("x")] for word in words[:4])
    return x, weights, stride, dilation, int(words[4].removeprefix("g"))


def file_of(cpu: str, isa: str, folder: Path = FOLDER) -> Path:
    """Path of the tuning records for a CPU."""
    return folder / f"{cpu}-{isa}.json"


def choices_of(target: Target, folder: Path = FOLDER) -> dict[str, TuningRecord]:
    """The tuning records for a target, by key; empty if there is no file. Raises KilnError for a bad file."""
    path = file_of(target.tuned_for or target.cpu, target.vector.isa, folder)
    if not path.is_file():
        return {}
    return {key: _choice(path, key, value) for key, value in read_json(path)["kernels"].items()}


def _choice(path: Path, key: str, value: dict[str, Any]) -> TuningRecord:
    if not is_key(key):
        raise KilnError(
            f"{path}: '{key}' is not the key of a kernel: 'conv2d NxHxWxC KHxKWxCxO s1x1 d1x1 g1' expected"
        )
    decisions = {name: item for name, item in value.items() if name not in MEASURED}
    allowed = sorted(asdict(HEURISTICS))
    for name, item in decisions.items():
        if name not in allowed:
            raise KilnError(f"{path}: {key}: '{name}' unknown, allowed: {', '.join(allowed)}")
        if not _fits(name, item):
            raise KilnError(f"{path}: {key}: {name} = {item!r}, {_EXPECTED[name]} expected")
    if "tile" in decisions:
        decisions["tile"] = tuple(decisions["tile"])
    return TuningRecord(**decisions)


_EXPECTED = {
    "winograd": "'off', 'f2' or 'f4'",
    "block": "a number of at least 0",
    "tile": "[rows, vectors], each at least 1,",
    "part": "a number of at least 0",
    "fetch": "a number of at least 0",
    "strip": "a number of at least 1",
}


def _fits(name: str, value: Any) -> bool:
    """Whether `value` is allowed for the field `name` of a TuningRecord (see _EXPECTED)."""

    def number(item: Any, least: int) -> bool:
        return isinstance(item, int) and not isinstance(item, bool) and item >= least

    if name == "winograd":
        return value in ("off", "f2", "f4")
    if name == "tile":
        return isinstance(value, list) and len(value) == 2 and all(number(item, 1) for item in value)
    return number(value, 1 if name == "strip" else 0)
