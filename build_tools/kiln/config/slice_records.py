"""The slices of a model's configuration as stages read them, see kiln.config.slices.

A record has the name and the format of the model, and the keys that its stage declares (kiln.stages).
"""

from __future__ import annotations

from typing import Literal

from kiln.config.budget import Budget
from kiln.config.data import Labels, Preprocess, Run
from kiln.config.fields import Threads
from kiln.config.model import Format, Params, Precision, Winograd
from kiln.config.records import Record
from kiln.config.target import Target
from kiln.config.weights import Weights


class ModelConfig(Record):
    """What every slice contains."""

    name: str
    format: Format = "onnx"


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


class BundleConfig(ModelConfig):
    """The slice of the stage that assembles the bundle."""

    description: str = ""
    licence: str | None = None


class RunConfig(ModelConfig):
    """The slice of the goal `run`."""

    preprocess: Preprocess | None = None
    labels: Labels | None = None
    run: Run | None = None
