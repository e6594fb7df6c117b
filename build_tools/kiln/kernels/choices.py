"""What was measured to be fastest for single kernels on a CPU: kernels/tuned/<cpu>.json, written by `tune`.

A file holds {"cpu", "isa", "kernels": {key: {…}}}; a key is an operator with its shape, the value a Choice
without what the rules decide as well. Kernels that are not listed follow the rules: the files make known
models faster, and no model needs them. A file counts for targets with its cpu and vector unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from kiln.config import Target
from kiln.errors import KilnError
from kiln.files import read_json

FOLDER = Path(__file__).parent / "tuned"


@dataclass(frozen=True)
class Choice:
    """Decisions about one kernel; None: as the rules say."""

    winograd: Literal["off", "f2", "f4"] | None = None
    block: int | None = None  # Winograd: tiles in a block; 0: a kernel for each phase
    tile: tuple[int, int] | None = None  # rows and vectors of the register tile
    part: int | None = None  # direct convolution: tiles that a panel goes through at a time; 0: all
    fetch: bool | None = None  # whether the next panel's weights are fetched ahead

    def describe(self) -> dict[str, Any]:
        """The decisions alone, for a file."""
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
            if value is not None
        }


Choices = Mapping[str, Choice]

RULES = Choice()


def key_of(
    x: Sequence[int], weights: Sequence[int], stride: Sequence[int], dilation: Sequence[int], groups: int
) -> str:
    """The key of a float32 convolution of x (N,H,W,C, as read) with weights (KH,KW,C/groups,O)."""
    sizes = ["x".join(map(str, values)) for values in (x, weights, stride, dilation)]
    return f"conv2d {sizes[0]} {sizes[1]} s{sizes[2]} d{sizes[3]} g{groups}"


def shapes_of(key: str) -> tuple[list[int], list[int], list[int], list[int], int]:
    """What `key_of` was called with."""
    _, *words = key.split()
    x, weights, stride, dilation = ([int(n) for n in word.lstrip("sd").split("x")] for word in words[:4])
    return x, weights, stride, dilation, int(words[4].removeprefix("g"))


def file_of(target: Target, folder: Path = FOLDER) -> Path:
    """Where a target's choices are kept."""
    return folder / f"{target.cpu}.json"


def choices_of(target: Target, folder: Path = FOLDER) -> dict[str, Choice]:
    """What is known for a target; nothing where no file is, or where it is for another vector unit."""
    path = file_of(target, folder)
    if not path.is_file():
        return {}
    content = read_json(path)
    if content["isa"] != target.vector.isa:
        return {}
    return {key: _choice(path, key, value) for key, value in content["kernels"].items()}


def _choice(path: Path, key: str, value: dict[str, Any]) -> Choice:
    known = set(asdict(RULES))
    unknown = sorted(set(value) - known - {"us", "rule_us"})
    if unknown:
        raise KilnError(f"{path}: {key}: '{unknown[0]}' unknown, allowed: {', '.join(sorted(known))}")
    decisions = {name: item for name, item in value.items() if name in known}
    if "tile" in decisions:
        decisions["tile"] = tuple(decisions["tile"])
    return Choice(**decisions)
