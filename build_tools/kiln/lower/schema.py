"""steps.json: the result of the `lower` stage for one bucket, as records.

Imports nothing of TVM: stages that only read plans use these records, too.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from kiln.config import sizes
from kiln.config.fields import Threads
from kiln.config.records import INT32_MAX, Record, Size


class OperatorRecord(Record):
    """An operator that a kernel computes; the keys are explained in kiln/opinfo/attach.py."""

    OMITTED: ClassVar[frozenset[str]] = frozenset({"kind", "out_dtype", "args", "nests"})

    name: str
    kind: str | None = None
    attrs: dict[str, Any] = Field(default_factory=dict)
    out_dtype: str | None = None
    args: list[dict[str, Any]] | None = None
    nests: int | None = None


class KernelArgument(Record):
    """A parameter of a kernel: a pointer to elements of `dtype`, or a scalar of that type.

    `const`: the kernel does not write there.
    """

    OMITTED: ClassVar[frozenset[str]] = frozenset({"scalar"})

    dtype: str
    const: bool = False
    scalar: bool = False


class OwnFunction(Record):
    """A C function that the user wrote, the body of an operator; `declared`: how it must be declared."""

    file: str
    function: str
    declared: str


class ExternalCode(Record):
    """Generated code that calls a library or a user's function, or a library's kernel for a GPU.

    `key`: the subgraph. `opens`: positions of the constant arguments that the library prepares in kiln_open;
    None: it prepares nothing. `block`: threads of a block of a GPU kernel; None for C. `own`: the user's
    function; None for code that calls a library. `ptx`: `source` is PTX, see kiln.byoc.backend.Launch, and
    `dynamic_bytes` its dynamic shared memory.
    """

    OMITTED: ClassVar[frozenset[str]] = frozenset({"own", "ptx", "dynamic_bytes"})

    backend: str
    key: str
    source: str
    opens: list[int] | None = None
    block: list[int] | None = None
    own: OwnFunction | None = None
    ptx: bool | None = None
    dynamic_bytes: int | None = None


class KernelRecord(Record):
    """A kernel. `parallel`: the last two parameters are a range of tasks. `flops`: operations of one call.

    `check`: a function of the runtime that checks indices or counts. `external`: code that calls a library.
    `variant`: the variant of the target that it is compiled for; None: the target's own.
    """

    OMITTED: ClassVar[frozenset[str]] = frozenset({"check", "external", "variant"})

    symbol: str
    args: list[KernelArgument]
    parallel: bool
    family: str = ""
    ops: list[OperatorRecord] = Field(default_factory=list)
    flops: int = 0
    check: bool = False
    external: ExternalCode | None = None
    variant: str | None = None

    @property
    def is_function(self) -> bool:
        """Whether there is a function of that name: control steps of loops and branches have none."""
        return self.family not in ("loop", "branch")


class TensorRecord(Record):
    """A tensor of a bucket: `bytes` at its greatest sizes; `alias`: the tensor whose memory it uses."""

    name: str
    dtype: str
    shape: list[Size]
    kind: Literal["input", "param", "activation", "workspace"]
    alias: str | None
    bytes: int


class GridAndBlock(Record):
    """Numbers of blocks of a launch on a GPU, and of threads of a block, along x, y and z."""

    grid: Annotated[list[Size], Field(min_length=3, max_length=3)]
    block: Annotated[list[int], Field(min_length=3, max_length=3)]


class IndexCheck(Record):
    """A check of the indices of operator `op` along an axis; `wraps`: negative indices count from the end."""

    op: str
    axis: int
    wraps: bool


class CountedSize(Record):
    """The size that a step counts: `dim`, of tensor `tensor` of the model's file."""

    dim: str
    tensor: str


class LoopMark(Record):
    """A control step of loop `number`: its first step, or with `ends` its last one.

    The last step goes back to the first one. The first one continues after the last one if the condition, its
    argument, is false.
    """

    number: int
    ends: bool


class BranchMark(Record):
    """A control step of choice `number`: before its first branch, before its second one, and after it.

    The first one continues at the second branch if its argument, the condition, is false; the second one
    continues after the second branch. The steps of each branch are between two of them.
    """

    number: int
    part: Literal["first", "second", "end"]


class AnyStep(Record):
    """A call of a kernel, in steps.json and in plan.json.

    `extent`: number of tasks; 0 if the kernel is not parallel. `attrs`: attributes of the first operator.
    `macs`: multiply-adds; None: as in the kernel's record. `launch`: on a GPU. `arithmetic`: of a quantised
    model: integers, floats, or floats between integers, as kiln/lower/arithmetic.py marks them. `counts`: the
    step turns its first argument, a count, into a size of the run. `loop`: the step begins or ends a loop;
    `branch`: it begins or ends a branch.
    """

    OMITTED: ClassVar[frozenset[str]] = frozenset(
        {"launch", "check", "counts", "loop", "branch", "arithmetic"}
    )

    kernel: str
    extent: Size = 0
    label: str
    attrs: dict[str, Any] = Field(default_factory=dict)
    macs: int | None = None
    launch: GridAndBlock | None = None
    check: IndexCheck | None = None
    counts: CountedSize | None = None
    loop: LoopMark | None = None
    branch: BranchMark | None = None
    arithmetic: Literal["integer", "float", "between"] | None = None


class SizeArgument(Record):
    """An argument that is a size: an expression of dimensions."""

    dim: Size


# An argument of a step as lowered: a tensor's name, or a size.
LoweredArgument = Annotated[
    Annotated[str, Tag("@tensor")] | Annotated[SizeArgument, Tag("@size")],
    Discriminator(lambda argument: "@tensor" if isinstance(argument, str) else "@size"),
]


class StepCall(Record):
    """The call that a variant of the target makes in a step."""

    kernel: str
    extent: Size
    args: list[LoweredArgument]


class Step(AnyStep):
    """A step as lowered: arguments are names of tensors, and sizes.

    `writes`: tensors that the step writes. `in_place`: arguments whose memory the result may reuse.
    `copies`: whether the step only copies its first argument to its second. `variants`: calls of the variants
    whose call is not the step's own, by their names.
    """

    OMITTED: ClassVar[frozenset[str]] = AnyStep.OMITTED | {"copies", "variants"}

    args: list[LoweredArgument]
    writes: list[str]
    in_place: list[str] = Field(default_factory=list)
    copies: bool | None = None
    variants: dict[str, StepCall] = Field(default_factory=dict)

    @property
    def tensors(self) -> list[str]:
        """Names of the tensors among the arguments, then of tensors that only some variants use."""
        names = [argument for argument in self.args if isinstance(argument, str)]
        more = [argument for call in self.variants.values() for argument in call.args]
        return names + [n for n in dict.fromkeys(o for o in more if isinstance(o, str)) if n not in names]

    @property
    def dims(self) -> set[str]:
        """Names of the dimensions in the sizes that the step is given."""
        calls = [(self.args, self.extent), *((call.args, call.extent) for call in self.variants.values())]
        extents = [extent for _, extent in calls]
        extents += [a.dim for arguments, _ in calls for a in arguments if isinstance(a, SizeArgument)]
        return {name for size in extents for name in sizes.names(size)}


class SizeInRange(Record):
    """The condition min <= size of `dim` <= max."""

    dim: str
    min: Annotated[int, Field(ge=0, le=INT32_MAX)]
    max: Annotated[int, Field(ge=0, le=INT32_MAX)]


class SizeIsMultiple(Record):
    """The condition that the size of `dim` is a multiple of `multiple`."""

    dim: str
    multiple: Annotated[int, Field(ge=1, le=INT32_MAX)]


class ConstantName(Record):
    """A constant of the function by name."""

    param: str


def value_tag(value: Any) -> str:
    """Tag of the value that an input is compared with: a word such as `ones`, or a constant."""
    return "@word" if isinstance(value, str) else "@constant"


class InputEquals(Record):
    """The condition that all elements of an input are 0, are 1, or equal the elements of a constant."""

    input: int
    value: Annotated[
        Annotated[Literal["zeros", "ones"], Tag("@word")] | Annotated[ConstantName, Tag("@constant")],
        Discriminator(value_tag),
    ]


def condition_tag(condition: Any) -> str:
    """Tag of a condition, from a record or from an object of a JSON file."""
    keys = condition if isinstance(condition, dict) else type(condition).model_fields
    return "@multiple" if "multiple" in keys else "@range" if "dim" in keys else "@input"


LoweredCondition = Annotated[
    Annotated[SizeInRange, Tag("@range")]
    | Annotated[SizeIsMultiple, Tag("@multiple")]
    | Annotated[InputEquals, Tag("@input")],
    Discriminator(condition_tag),
]


class CaseConditions(Record):
    """The conditions under which a special case runs: all of them are true."""

    all: list[LoweredCondition]


class LiftedParameter(Record):
    """A parameter before lowering: its size, and the SHA-256 of its content in hexadecimal."""

    bytes: int
    sha256: str


class PatchRecord(Record):
    """The first `layers` layers, elementwise ones not counted, are computed in `parts` parts of the image.

    `macs`: multiply-adds of these layers, of which `more_macs` are computed again, since parts share rows.
    `limit_bytes`: the limit of RAM. `bytes_before`, `bytes_after`: estimated peaks without and with patches.
    """

    layers: int
    parts: int
    macs: int
    more_macs: int
    limit_bytes: int
    bytes_before: int
    bytes_after: int


class LoweredFunction(Record):
    """A lowered function: its tensors, kernels and steps, and the names of its inputs and outputs."""

    inputs: list[str]
    outputs: list[str]
    tensors: list[TensorRecord]
    kernels: list[KernelRecord]
    steps: list[Step]


class LoweredCase(LoweredFunction):
    """The general function of a bucket (`when` is None) or a special case.

    `params`: prefix of the names of its parameters in params.safetensors. `lifted`: parameters by name.
    """

    name: str
    params: str
    when: CaseConditions | None = None
    lifted: dict[str, LiftedParameter] = Field(default_factory=dict)
    patches: PatchRecord | None = None


class VariantFeatures(Record):
    """A variant of the target: its name, and the processor features that its kernels need."""

    name: str
    features: list[str] = Field(default_factory=list)


class LoweredBucket(Record):
    """steps.json. `untuned`: keys of kernels without tuning records. `subgraphs`: what libraries support."""

    OMITTED: ClassVar[frozenset[str]] = frozenset({"untuned", "subgraphs"})

    cases: list[LoweredCase]
    threads: Threads
    variants: list[VariantFeatures]
    untuned: list[str] | None = None
    subgraphs: list[str] | None = None
