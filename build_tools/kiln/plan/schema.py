"""plan.json, as records: steps in the order in which they run, and memory; see docs/plan-and-runtime.md."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from kiln.config.fields import Threads
from kiln.config.interface import CountedDimension, Dimension, Interface, Multiple, PortRecord
from kiln.config.records import Record, Size, parse, read
from kiln.config.target import Cuda
from kiln.lower.schema import (
    AnyStep,
    KernelRecord,
    PatchRecord,
    SizeInRange,
    SizeIsMultiple,
    VariantFeatures,
    condition_tag,
    value_tag,
)
from kiln.plan.parameter_records import Count as Count
from kiln.plan.parameter_records import LiftedSummary as LiftedSummary
from kiln.plan.parameter_records import Parameters as Parameters
from kiln.plan.parameter_records import PlacedRegion as PlacedRegion
from kiln.plan.parameter_records import SeveralForms as SeveralForms
from kiln.plan.parameter_records import StoredTensor as StoredTensor
from kiln.plan.parameter_records import TransformTotal as TransformTotal


class PlannedPort(PortRecord):
    """An input or output of the plan; `bytes`: at its greatest sizes."""

    bytes: Count = 0


class PlacedState(Record):
    """A value of the session's state: `bytes` bytes from byte `offset` on.

    `initial`: offset in the parameters of its value before the first run; None: zeros.
    """

    name: str
    dtype: str
    shape: list[int]
    offset: Count
    bytes: Count
    initial: Count | None = None


class PortArgument(Record):
    """The argument is an input or output of the model, from byte `offset` on.

    `shape`: of the tensor that the step reads or writes there, for reports.
    """

    OMITTED: ClassVar[frozenset[str]] = frozenset({"shape"})

    at: Literal["input", "output"]
    index: int
    offset: int = 0
    bytes: Count = 0
    shape: list[Size] | None = None


class MemoryArgument(Record):
    """The argument is `bytes` bytes of the arena, the parameters or the state, from byte `offset` on.

    `shape`: of the tensor that the step reads or writes there, for reports. `region`: of the arena, as an
    index of the plan's regions.
    """

    OMITTED: ClassVar[frozenset[str]] = frozenset({"shape"})

    at: Literal["arena", "params", "state"]
    offset: int
    bytes: Count = 0
    shape: list[Size] | None = None
    region: Count = 0


class ExpressionArgument(Record):
    """The argument is the value of a size expression."""

    at: Literal["dim"]
    expr: Size


def _argument_tag(argument: Any) -> str:
    location_kind = argument.get("at") if isinstance(argument, dict) else getattr(argument, "at", None)
    return {"input": "@port", "output": "@port", "dim": "@dim"}.get(str(location_kind), "@memory")


StepArgument = Annotated[
    Annotated[PortArgument, Tag("@port")]
    | Annotated[MemoryArgument, Tag("@memory")]
    | Annotated[ExpressionArgument, Tag("@dim")],
    Discriminator(_argument_tag),
]


class PlannedCall(Record):
    """The call that a variant of the target makes in a step."""

    kernel: str
    extent: Size
    args: list[StepArgument]


class PlannedStep(AnyStep):
    """A step in the order of execution: arguments are places in memory, and sizes.

    `variants`: calls of the variants whose call is not the step's own, by their names.
    """

    OMITTED: ClassVar[frozenset[str]] = AnyStep.OMITTED | {"variants"}

    args: list[StepArgument]
    variants: dict[str, PlannedCall] = Field(default_factory=dict)


class PlacedTensor(Record):
    """Memory in the arena that is in use from the start of step `first` to the end of step `last`.

    `name`: the first tensor in this memory; `shared`: the tensors that reuse it later. `region`: index of the
    plan's regions in which `offset` is.
    """

    name: str
    offset: Count
    bytes: Count
    first: Count
    last: Count
    kind: str
    shared: list[str] = Field(default_factory=list)
    region: Count = 0


class AcceptedSizes(Record):
    """The sizes of a dimension that a bucket accepts: the multiples of `multiple` in min..max."""

    min: int
    max: int
    multiple: Multiple = 1


def _range(size: Any) -> Any:
    return {"min": size, "max": size} if isinstance(size, int) else size


class ParameterBytes(Record):
    """Bytes of params.bin that an input is compared with."""

    offset: int
    bytes: int


class InputContent(Record):
    """The condition that all elements of an input are 0, are 1, or equal bytes of the parameters."""

    input: int
    value: Annotated[
        Annotated[Literal["zeros", "ones"], Tag("@word")] | Annotated[ParameterBytes, Tag("@constant")],
        Discriminator(value_tag),
    ]


PlannedCondition = Annotated[
    Annotated[SizeInRange, Tag("@range")]
    | Annotated[SizeIsMultiple, Tag("@multiple")]
    | Annotated[InputContent, Tag("@input")],
    Discriminator(condition_tag),
]


class PlannedCase(Record):
    """The bucket runs in place of bucket `bucket` if all conditions are true."""

    bucket: int
    all: Annotated[list[PlannedCondition], Field(min_length=1)]


class PlannedBucket(Record):
    """A function of the model for one set of shapes: its arena, steps and tensors.

    `dims`: the sizes that it accepts; a dimension without an entry may have any size. `lower_bound_bytes`:
    the fewest bytes that any placement of its tensors needs. `patches`: the layers that are computed
    in parts. `arena_bytes`: of the arena, or of its part in the plan's first region; `more_arenas`: of its
    parts in the other regions.
    """

    OMITTED: ClassVar[frozenset[str]] = frozenset({"patches"})

    name: str
    strategy: str = "exact"
    dims: dict[str, Annotated[AcceptedSizes, BeforeValidator(_range)]] = Field(default_factory=dict)
    when: PlannedCase | None = None
    arena_bytes: Count
    lower_bound_bytes: Count = 0
    steps: list[PlannedStep]
    tensors: list[PlacedTensor] = Field(default_factory=list)
    patches: PatchRecord | None = None
    more_arenas: list[Count] = Field(default_factory=list)

    @property
    def all_arena_bytes(self) -> int:
        """Bytes of the arena in all regions."""
        return self.arena_bytes + sum(self.more_arenas)

    def flat_offset(self, tensor: PlacedTensor) -> int:
        """The offset of a tensor if the regions followed one another."""
        return sum((self.arena_bytes, *self.more_arenas)[: tensor.region]) + tensor.offset


class CpuVariants(Record):
    """The variants of the target, in the order in which they are preferred: the last that can run is used."""

    arch: str
    variants: Annotated[list[VariantFeatures], Field(min_length=1)]


class Plan(Record):
    """The content of plan.json.

    `untuned`: keys of the kernels that could have a tuning record (tir/tuning_records.py), and have none.
    `regions`: where the arena is split over regions of the target's memory, all of them; else none.
    """

    OMITTED: ClassVar[frozenset[str]] = frozenset({"cpu", "cuda", "untuned"})

    format: Literal[2]
    name: str
    target: str
    threads: Threads
    cpu: CpuVariants | None = None
    inputs: list[PlannedPort]
    outputs: Annotated[list[PlannedPort], Field(min_length=1)]
    dims: list[Dimension] = Field(default_factory=list)
    counted: list[CountedDimension] = Field(default_factory=list)
    states: list[PlacedState] = Field(default_factory=list)
    state_bytes: Count = 0
    params: Parameters
    kernels: list[KernelRecord]
    buckets: Annotated[list[PlannedBucket], Field(min_length=1)]
    cuda: Cuda | None = None
    untuned: list[str] | None = None
    regions: list[PlacedRegion] = Field(default_factory=list)
    model_hash: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

    @property
    def interface(self) -> Interface:
        """Inputs, outputs and dimensions of the model."""
        return Interface(
            model=self.name,
            inputs=list[PortRecord](self.inputs),
            outputs=list[PortRecord](self.outputs),
            dims=self.dims,
            counted=self.counted,
        )


def read_plan(path: Path) -> Plan:
    """The content of plan.json. Raises KilnError naming the entry that is missing or invalid."""
    return read(Plan, path)


def parse_plan(content: object) -> Plan:
    """Parsed JSON as a plan. Raises KilnError naming the entry that is missing or invalid."""
    return parse(Plan, content, "plan.json")
