"""Configuration of a model: the typed form of models/*.yaml."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    WithJsonSchema,
    model_validator,
)

from kiln.config import sizes
from kiln.config.budget import Budget
from kiln.config.byoc import ByocKey
from kiln.config.c_words import can_name_model, too_long
from kiln.config.check import Section, choices, first_twice, nearest
from kiln.config.cut import Cut
from kiln.config.data import Golden, Labels, Preprocess, Run
from kiln.config.dims import Dim, DimBucket, Size, segments
from kiln.config.faults import PlacedError
from kiln.config.fields import Bytes, Positive, Storage, Threads, WebAddress
from kiln.config.source import ModelSource
from kiln.config.special import SpecialCase, check_cases
from kiln.config.state import StateEntry
from kiln.config.target import VariantName
from kiln.config.tolerance import Limits, Tolerance
from kiln.config.weights import WeightsKey

Format = Literal["onnx", "tflite", "pt2"]
Winograd = Literal["auto", "off", "f2", "f4"]
Precision = Literal["fp32", "tf32", "bf16", "fp16"]
DType = Literal[
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
]
# For the JSON schema; _identifier uses fullmatch: $ in Python also matches before a line end.
_IDENTIFIER = "^[a-z][a-z0-9_]*$"


def _identifier(value: str) -> str:
    if not re.fullmatch("[a-z][a-z0-9_]*", value):
        raise ValueError(f"lower-case letters, digits and _ expected, a letter first, got '{value}'")
    return value


def _symbol(value: str) -> str:
    if (fault := too_long(value)) is not None:
        raise ValueError(fault)
    if not can_name_model(value):
        raise ValueError(
            f"'{value}' is a word of C, a function of its library or a name in generated code, which C "
            f"symbols cannot begin with: rename the file, to m_{value} for example"
        )
    return value


Identifier = Annotated[
    str, AfterValidator(_identifier), WithJsonSchema({"type": "string", "pattern": _IDENTIFIER})
]


class Tensor(Section):
    """Properties of one input or output; an omitted key means: as in the model file."""

    shape: list[Size] | None = Field(
        default=None,
        description="size of each axis, the name of one of `dims`, or an expression: past + 1",
    )
    dtype: DType | None = Field(default=None, description="type of the elements")
    layout: str | None = Field(
        default=None, description="meaning of the axes, such as NCHW or NHWC; documentation only"
    )
    pad: float | None = Field(
        default=None,
        allow_inf_nan=False,
        description="input: value of padded elements in pad buckets; null: the first value proven neutral",
    )
    mask: bool = Field(
        default=False, description="input: 1 where elements are real, 0 where they are padding"
    )


class StageLimits(Section):
    """Resource limits of one stage of the build; a stage that exceeds one is ended."""

    seconds: Positive = Field(
        default=3600, description="time of each stage, except stages that measure or wait for a device"
    )
    program_seconds: Positive = Field(
        default=900,
        description="time of a program that test, run or bench starts, here, in an emulator or on a device",
    )
    memory: Annotated[Bytes, Field(ge=256 << 20)] = Field(
        default=16 << 30, description="private memory of each stage, in bytes or as 16GiB; at least 256MiB"
    )


class Params(Section):
    """Storage of the parameters in the bundle."""

    storage: Storage | None = Field(default=None, description="null: the target's default")
    section: str = Field(
        default=".kiln_params",
        pattern=r"^[.A-Za-z_][.A-Za-z0-9_]*$",
        description="name of the linker section, for storage: section",
    )


class Model(Section):
    """One model: its source, inputs and outputs, and how its bundle is built and checked."""

    name: Annotated[Identifier, AfterValidator(_symbol)] = Field(
        description="the model's name, the prefix of its C symbols: the name of the YAML file"
    )
    description: str = Field(default="", description="what the model does, for people")
    licence: str | None = Field(default=None, description="SPDX identifier of the licence, or free text")
    homepage: WebAddress | None = Field(
        default=None, description="address of the model's web page, which packages name: https://…"
    )
    aliases: list[Identifier] = Field(default_factory=list, description="other names for model=")
    source: ModelSource = Field(description="where the model's file comes from")
    format: Format = Field(description="format of the model's file; left out: by the file's suffix")
    cut: Cut | None = Field(
        default=None, description="a part of the graph: inputs bound to constants, other inputs and outputs"
    )
    inputs: dict[str, Tensor] = Field(
        default_factory=dict, description="by name, properties of inputs that the model's file lacks"
    )
    outputs: dict[str, Tensor] = Field(
        default_factory=dict, description="by name, properties of outputs that the model's file lacks"
    )
    dims: dict[Identifier, Dim] = Field(
        default_factory=dict,
        description="by name, the ranges of dynamic dimensions and the sizes that get specialised code",
    )
    bounds: dict[str, Annotated[int, Field(ge=1, lt=1 << 31)]] = Field(
        default_factory=dict,
        description="by tensor of the model's file whose size is in the data, such as the result of NonZero: "
        "the most elements, or rows, that it may have; a run that finds more ends with KILN_TOO_MANY",
    )
    buckets: Annotated[list[dict[Identifier, DimBucket]], Field(min_length=1)] | None = Field(
        default=None,
        description="combinations of sizes that get specialised code; null: every combination of the sizes "
        "in `dims`",
    )
    special_cases: list[SpecialCase] = Field(
        default_factory=list,
        description="contents of inputs, and sizes, that get specialised code; the first case whose "
        "conditions are true is used",
    )
    state: dict[str, StateEntry] = Field(
        default_factory=dict,
        description="by input, the output of the run before that it is fed from: {h_in: h_out}; neither is a "
        "parameter of a run any more",
    )
    preprocess: Preprocess | None = Field(default=None, description="how an image becomes the input")
    labels: Labels | None = Field(default=None, description="names of a classifier's classes")
    run: Run | None = Field(default=None, description="what the goal `run` shows")
    golden: Golden = Field(
        default=Golden(), description="test inputs on which bundle and reference are compared"
    )
    tolerance: Tolerance = Field(
        default=Tolerance(), description="greatest allowed difference between outputs and the reference"
    )
    params: Params = Field(default=Params(), description="storage of the parameters")
    threads: Threads | None = Field(
        default=None, description="how kernels run in parallel; null: as the target specifies"
    )
    winograd: Winograd = Field(
        default="auto",
        description="Winograd's algorithm for 3x3 convolutions: fewer multiplications, at an error of up to "
        "4e-6 (f2) or 7e-5 (f4) on data of unit scale; auto: where it is faster and the target's "
        "weight_growth allows the larger weights",
    )
    precision: Precision = Field(
        default="fp32",
        description="fp16, bf16: weights and tensors between kernels have 16 bits, sums and functions are "
        "computed in float32; tf32: matmuls and convolutions round the factors to 10 bits of mantissa; "
        "for GPU targets only",
    )
    weights: WeightsKey = Field(
        default=None,
        description="type in which float32 weights of matmuls, convolutions and tables are stored: fp16, "
        "bf16, int8 or int4, or a section; null: as they are in the model's file; for CPU targets only",
    )
    checks: Literal["indices"] | None = Field(
        default=None,
        description="indices: a run ends with KILN_BAD_INDEX at an index outside its axis; null: such an "
        "index reads the nearest element, and a write to it is dropped",
    )
    quantised: Literal["strict"] | None = Field(
        default=None,
        description="strict: the build ends with an error if a step computes on floats between quantised "
        "tensors; null: such steps are marked in the plan and the report",
    )
    patches: Literal["auto", "none"] = Field(
        default="auto",
        description="the first layers in parts of the image, so that their feature maps never exist whole: "
        "auto: where the model needs more RAM than the budgets and the memory of the target allow; "
        "none: never",
    )
    byoc: ByocKey = Field(
        default=None,
        description="external libraries: none, names separated by commas, or a section; null: as the target "
        "specifies",
    )
    variants: Annotated[list[VariantName], Field(min_length=1)] | None = Field(
        default=None, description="names of the target's variants to build; null: all of them"
    )
    budget: Budget = Field(default=Budget(), description="limits of memory, work and time for this model")
    limits: StageLimits = Field(
        default=StageLimits(), description="time and memory that one stage of the build may use"
    )

    @model_validator(mode="after")
    def _cut_of_format(self) -> Model:
        if self.cut is not None:
            self.cut.check_format(self.format)
        return self

    @model_validator(mode="after")
    def _of_inputs_only(self) -> Model:
        for name, tensor in self.outputs.items():
            for key in sorted({"pad", "mask"} & tensor.model_fields_set):
                raise PlacedError(("outputs", name, key), "a key of inputs, which an output does not have")
        return self

    @model_validator(mode="after")
    def _padded_inputs(self) -> Model:
        rows = [bucket for row in self.buckets or [] for bucket in row.values()]
        rows += [bucket for dim in self.dims.values() for bucket in dim.buckets]
        pads = any(bucket.pad is not None for bucket in rows)
        pads |= any(dim.auto and dim.auto_as != "exact" for dim in self.dims.values())
        for name, tensor in self.inputs.items():
            if tensor.pad is not None and not pads:
                raise PlacedError(
                    ("inputs", name, "pad"), "no bucket pads an input; remove the key, or add one: {pad: n}"
                )
            if tensor.pad is not None and tensor.mask:
                raise PlacedError(("inputs", name, "pad"), "a mask is padded with 0: remove the key, or mask")
        return self

    @model_validator(mode="after")
    def _fallback_of_buckets(self) -> Model:
        for name, dim in self.dims.items():
            if dim.fallback == "error" and not (dim.buckets or dim.auto or self.buckets):
                raise PlacedError(
                    ("dims", name, "fallback"),
                    "error only goes with buckets; without any, general code computes all sizes",
                )
        return self

    @model_validator(mode="after")
    def _of_images(self) -> Model:
        for key in ("labels", "run"):
            if getattr(self, key) is not None and self.preprocess is None:
                raise PlacedError((key,), "needs 'preprocess', which says how an image becomes the input")
        return self

    @model_validator(mode="after")
    def _known_dims(self) -> Model:
        for side, tensors in (("inputs", self.inputs), ("outputs", self.outputs)):
            for name, tensor in tensors.items():
                for axis, size in enumerate(tensor.shape or []):
                    for dim in sorted(sizes.names(size) - self.dims.keys()):
                        raise PlacedError(
                            (side, name, "shape", axis),
                            f"dimension '{dim}' has no range in 'dims'" + nearest(dim, self.dims),
                        )
        return self

    @model_validator(mode="after")
    def _known_cases(self) -> Model:
        try:
            check_cases(
                self.special_cases, {n: range(d.min, d.max + 1, d.multiple) for n, d in self.dims.items()}
            )
        except PlacedError as error:
            raise PlacedError(("special_cases", *error.place), str(error)) from None
        return self

    @model_validator(mode="after")
    def _each_once(self) -> Model:
        lists: dict[tuple[str, ...], Sequence[str]] = {
            ("aliases",): [self.name, *self.aliases], ("variants",): self.variants or [],
            ("cut", "inputs"): self.cut.inputs if self.cut else [],
        }  # fmt: skip
        for key, words in lists.items():
            twice = first_twice(words)
            if twice is not None:
                also = ", or the model's own name" if key == ("aliases",) else ""
                raise PlacedError(key, f"'{twice}' is there twice{also}")
        for position, row in enumerate(self.buckets or []):
            if row in (self.buckets or [])[:position]:
                raise PlacedError(("buckets", position), "this combination is there twice")
        for position, entry in enumerate(self.golden.inputs):
            if entry in self.golden.inputs[:position]:
                raise PlacedError(("golden", "inputs", position), "this test case is there twice")
        return self

    @model_validator(mode="after")
    def _known_buckets(self) -> Model:
        for position, row in enumerate(self.buckets or []):
            for name, bucket in row.items():
                if name not in self.dims:
                    raise PlacedError(
                        ("buckets", position, name), f"no dimension of this name{choices(name, self.dims)}"
                    )
                if self.dims[name].buckets:
                    raise PlacedError(
                        ("buckets", position, name),
                        f"dims.{name}.buckets lists sizes too: one place only",
                    )
                try:
                    segments(self.dims[name], [bucket])
                except PlacedError as error:
                    raise PlacedError(("buckets", position, name), str(error)) from None
        return self

    def tolerance_in_force(self) -> dict[str, Any]:
        """The tolerance that applies: with a precision below float32, its own limits are the least."""
        plain = self.tolerance.model_dump(mode="json", exclude={"tf32"})
        if self.weights is not None:
            for entry in (plain, *plain["outputs"].values()):
                if entry["relative"] is not None:
                    entry["relative"] = max(entry["relative"], self.weights.accepted)
        if self.precision == "fp32":  # the model's own operators may have 16 bits
            return plain
        del plain["fp16"], plain["bf16"]
        raised: Limits = getattr(self.tolerance, self.precision)
        least = raised.model_dump(mode="json", exclude_none=True)
        for entry in (plain, *plain["outputs"].values()):
            for key, value in least.items():
                if entry[key] is not None:
                    entry[key] = max(entry[key], value)
        return plain
