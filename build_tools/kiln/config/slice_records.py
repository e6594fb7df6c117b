"""The slices of a model's configuration as stages read them, see kiln.config.slices.

A record has the name and the format of the model, and the keys that its stage declares (kiln.stages).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kiln.config.budget import Budget
from kiln.config.data import Golden, Labels, Preprocess, Run
from kiln.config.dims import Dim
from kiln.config.fields import Threads
from kiln.config.model import Format, Params, Precision, Tensor, Winograd
from kiln.config.records import Record
from kiln.config.special import SpecialCase
from kiln.config.state import KeptValue
from kiln.config.target import Target
from kiln.config.weights import Weights


class ModelConfig(Record):
    """The keys that every slice contains."""

    name: str
    format: Format = "onnx"


class DimSizes(Record):
    """The sizes of a dynamic dimension: multiples of `multiple` from `min` to `max`."""

    min: int
    max: int
    multiple: int = 1


class ImportConfig(ModelConfig):
    """The slice of the stages that import the model file; see the keys of `kiln.config.model.Model`."""

    inputs: dict[str, Tensor] = Field(default_factory=dict)
    outputs: dict[str, Tensor] = Field(default_factory=dict)
    dims: dict[str, DimSizes] = Field(default_factory=dict)
    bounds: dict[str, int] = Field(default_factory=dict)
    state: dict[str, KeptValue] = Field(default_factory=dict)


class SpecializeConfig(ModelConfig):
    """The slice of the stage that adds padding and special cases."""

    dims: dict[str, DimSizes] = Field(default_factory=dict)
    special_cases: list[SpecialCase] = Field(default_factory=list)


class EdgesConfig(ModelConfig):
    """The slice of the stage that chooses the buckets of dimensions with `buckets: auto`."""

    inputs: dict[str, Tensor] = Field(default_factory=dict)
    outputs: dict[str, Tensor] = Field(default_factory=dict)
    dims: dict[str, Dim]
    bounds: dict[str, int] = Field(default_factory=dict)
    state: dict[str, KeptValue] = Field(default_factory=dict)

    @property
    def import_config(self) -> ImportConfig:
        """The slice with which the stage imports the model to estimate its costs."""
        dims = {n: DimSizes(min=dim.min, max=dim.max, multiple=dim.multiple) for n, dim in self.dims.items()}
        return ImportConfig(
            name=self.name,
            format=self.format,
            inputs=self.inputs,
            outputs=self.outputs,
            dims=dims,
            bounds=self.bounds,
            state=self.state,
        )


class GoldenConfig(ModelConfig):
    """The slice of the stage that makes golden vectors."""

    golden: Golden = Golden()
    preprocess: Preprocess | None = None
    inputs: dict[str, Tensor] = Field(default_factory=dict)
    special_cases: list[SpecialCase] = Field(default_factory=list)

    @property
    def masks(self) -> list[str]:
        """The names of the inputs that mark padded elements."""
        return [name for name, port in self.inputs.items() if port.mask]


class LowerConfig(ModelConfig):
    """The slice of the stages that lower, tune, and choose among libraries."""

    threads: Threads | None = None
    winograd: Winograd = "auto"
    precision: Precision = "fp32"
    checks: Literal["indices"] | None = None
    quantised: Literal["strict"] | None = None
    patches: Literal["auto", "none"] = "auto"
    budget: Budget = Budget()

    def threads_on(self, target: Target) -> Threads:
        """How kernels run in parallel: the model's own choice before that of the target."""
        return self.threads or target.threads


class WeightsConfig(ModelConfig):
    """The slice of the stage that rounds weights."""

    weights: Weights


class PrecisionConfig(ModelConfig):
    """The slice of the stage that measures errors of precisions and of rounded weights."""

    precision: Precision
    weights: Weights | None


class PlanConfig(ModelConfig):
    """The slice of the stage that plans."""

    params: Params = Params()
    winograd: Winograd = "auto"
    checks: Literal["indices"] | None = None


class BundleConfig(ModelConfig):
    """The slice of the stage that assembles the bundle."""

    description: str = ""
    licence: str | None = None
    homepage: str | None = None


class RunConfig(ModelConfig):
    """The slice of the goal `run`."""

    preprocess: Preprocess | None = None
    labels: Labels | None = None
    run: Run | None = None
