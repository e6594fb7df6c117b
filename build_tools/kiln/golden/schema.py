"""golden.json, as records: the golden vectors of a model, and how they were made."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from kiln.config.boxes import Box
from kiln.config.interface import Dimension
from kiln.config.records import Record, Size, read


class GoldenTensor(Record):
    """A tensor of a vector, in the raw, little-endian file `file` next to golden.json.

    `quantised`: whether its elements are levels. `element`: their type where `dtype` is only its storage,
    such as bfloat16 in uint16. `precision`: fp16 or bf16 where the reference computes with
    16 bits. `sensitivity`: of an output, the change that the reference itself shows, see
    kiln.golden.sensitivity for quantised models, kiln.golden.rounding for others.
    """

    OMITTED: ClassVar[frozenset[str]] = frozenset({"element", "precision", "sensitivity"})

    file: str
    name: str
    dtype: str
    shape: list[int]
    quantised: bool = False
    element: str | None = None
    sha256: str = ""
    precision: str | None = None
    sensitivity: float | None = None


class GoldenEntry(Record):
    """One vector: inputs, and the outputs of the reference.

    `bucket`: the bucket that must serve it; None for a model without buckets. `dims`: sizes of the
    dimensions. `run`: for a model with state, how many runs of the same sequence come before.
    """

    OMITTED: ClassVar[frozenset[str]] = frozenset({"bucket", "dims", "run"})

    name: str
    bucket: str | None = None
    dims: dict[str, int] = Field(default_factory=dict)
    run: int | None = None
    inputs: list[GoldenTensor]
    outputs: list[GoldenTensor]


# LiteRT's kernel sets, each with the other one.
OTHER_KERNELS = {"BUILTIN": "BUILTIN_REF", "BUILTIN_REF": "BUILTIN"}


class ReferenceRecord(Record):
    """The program that computed the outputs, and its settings."""

    name: str
    version: str
    settings: dict[str, Any]


class SymbolicInput(Record):
    """An input with the size expressions of its axes."""

    name: str
    dtype: str
    shape: list[Size]


class GoldenFile(Record):
    """The content of golden.json.

    `runs`: runs of a sequence, for a model with state. `dims`, `buckets`, `inputs`: of a model with buckets.
    `rule`: how errors and limits are computed, in formulas by kind of output.
    """

    OMITTED: ClassVar[frozenset[str]] = frozenset({"runs", "dims", "buckets", "inputs"})

    format: Literal[1] = 1
    model: str
    reference: ReferenceRecord
    runs: int | None = None
    dims: list[Dimension] | None = None
    buckets: list[Box] | None = None
    inputs: list[SymbolicInput] | None = None
    rule: dict[str, str]
    vectors: list[GoldenEntry]


def read_golden(folder: Path) -> GoldenFile:
    """The content of golden.json in `folder`. Raises KilnError when it is missing or damaged."""
    return read(GoldenFile, folder / "golden.json")
