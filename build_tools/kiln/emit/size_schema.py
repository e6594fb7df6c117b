"""size.json, as records: bytes of a model on a target, from its plan and from a linked program."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from kiln.config.records import Record, read
from kiln.lower.schema import PatchRecord, VariantFeatures
from kiln.plan.parameter_records import Count, SeveralForms
from kiln.plan.schema import AcceptedSizes


class GpuResources(Record):
    """Resources of a kernel on one GPU architecture: bytes of machine code, and of memory for each thread."""

    bytes: Count
    registers: Count
    stack_bytes: Count
    shared_bytes: Count


class GpuUsage(Record):
    """The content of usage.json: bytes of the image, and the resources by kernel and architecture."""

    image_bytes: Count
    kernels: dict[str, dict[str, GpuResources]]


class LinkedKernel(Record):
    """Bytes of a kernel's code. `label`: its operators; `gpu`: its resources by architecture."""

    OMITTED: ClassVar[frozenset[str]] = frozenset({"gpu"})

    symbol: str
    label: str
    bytes: Count
    gpu: dict[str, GpuResources] = Field(default_factory=dict)


class CodeOfBucket(Record):
    """Bytes of the kernels that a bucket calls, and of the kernels that only it calls."""

    name: str
    code_bytes: Count
    own_code_bytes: Count


class CodeOfVariant(VariantFeatures):
    """Bytes of the kernels that a variant calls, and of the kernels that only it calls."""

    code_bytes: Count
    own_code_bytes: Count


class StackFrame(Record):
    """Bytes of stack that a function needs for itself."""

    function: str
    bytes: Count


class LinkedSections(Record):
    """Bytes of a program's sections minus those of an empty program; may be negative."""

    text: int
    rodata: int
    data: int
    bss: int


class CodeByPart(Record):
    """Bytes of code of each part of a linked program; `floats`: of software that computes with floats."""

    OMITTED: ClassVar[frozenset[str]] = frozenset({"floats"})

    kernels: Count = 0
    plan: Count = 0
    runtime: Count = 0
    threads: Count = 0
    platform: Count = 0
    other: Count = 0
    floats: Count | None = None


class LinkedFigures(Record):
    """Bytes of a linked program that uses the model minus those of an empty program.

    `stack_bytes`, `stack_frames`: of the deepest chain of calls; None on targets where it is not measured.
    """

    OMITTED: ClassVar[frozenset[str]] = frozenset({"stack_bytes", "stack_frames"})

    sections: LinkedSections
    flash_bytes: int
    ram_bytes: int
    stack_bytes: Count | None = None
    stack_frames: list[StackFrame] | None = None
    code: CodeByPart
    kernels: list[LinkedKernel]
    buckets: list[CodeOfBucket]
    variants: list[CodeOfVariant]


class StoredParameters(Record):
    """Bytes of the parameters, and whether they are embedded in the library or in a file."""

    bytes: Count
    storage: str


class BucketFigures(Record):
    """Costs of a bucket by its plan. `params_bytes`: of all parameters that it reads."""

    OMITTED: ClassVar[frozenset[str]] = frozenset({"patches"})

    name: str
    strategy: str
    dims: dict[str, AcceptedSizes]
    arena_bytes: Count
    lower_bound_bytes: Count
    patches: PatchRecord | None = None
    case_of: str | None
    steps: Count
    params_bytes: Count


class BudgetOfRun(Record):
    """A limit of a run, in instructions or in milliseconds."""

    owner: str
    kind: Literal["instructions", "latency_ms"]
    limit: int | float


class BudgetUse(Record):
    """A limit of bytes, and how many are used."""

    owner: str
    kind: Literal["flash", "ram", "stack"]
    limit: int
    used: int


class SizeFile(Record):
    """The content of size.json. `several`: parameters in several packings; `linked`: None before linking."""

    OMITTED: ClassVar[frozenset[str]] = frozenset({"linked"})

    format: Literal[1] = 1
    model: str
    params: StoredParameters
    several: list[SeveralForms]
    state_bytes: Count
    buckets: list[BucketFigures]
    target: str
    linked: LinkedFigures | None = None
    run_budgets: list[BudgetOfRun] = Field(default_factory=list)
    budgets: list[BudgetUse] = Field(default_factory=list)


def read_size(path: Path) -> SizeFile:
    """Read size.json. Raises KilnError for a file that is not one."""
    return read(SizeFile, path)
