"""The keys of a model that each stage reads: a stage runs again only if its own slice has changed."""

from __future__ import annotations

import json
from typing import Any

from kiln.config.model import Model
from kiln.config.target import Target

_SLICES: dict[str, tuple[str, ...]] = {
    "fetch": ("source",),
    "import": ("inputs", "outputs", "dims"),
    "simplify": (),
    "golden": ("golden", "preprocess", "inputs", "dims", "special_cases"),
    # With pad buckets: the golden stage checks the error that padding adds against the tolerance.
    "golden_padded": ("golden", "preprocess", "inputs", "dims", "special_cases", "tolerance"),
    "tolerance": ("tolerance",),
    "precision": ("precision",),
    "padding": ("inputs", "outputs", "dims"),
    "specialize": ("dims", "inputs", "outputs", "special_cases"),
    "edges": ("inputs", "outputs", "dims", "buckets"),
    "lower": ("threads", "winograd", "precision", "checks"),
    "plan": ("params", "threads", "dims"),
    "source": ("params", "description"),
    "bundle": ("description", "licence"),
    "run": ("preprocess", "labels", "run"),
    "budget": ("budget",),
}

_RANGE = ("min", "max", "multiple")


def stage_config(model: Model, stage: str) -> dict[str, Any]:
    """The slice of a model's configuration that one stage reads, as plain data.

    Always contains `name` and `format`. Raises ValueError for a stage without a slice.
    """
    if stage not in _SLICES:
        raise ValueError(f"no slice for stage '{stage}'; known: {', '.join(_SLICES)}")
    config = model.model_dump(mode="json", include={"name", "format", *_SLICES[stage]})
    if stage == "tolerance":
        config["tolerance"] = model.tolerance_in_force()
    if stage != "edges" and "dims" in config:  # the other stages read buckets.json and bucket.json
        config["dims"] = {n: {key: dim[key] for key in _RANGE} for n, dim in config["dims"].items()}
    return config


def target_config(target: Target) -> dict[str, Any]:
    """A target as plain data, the content of target.json. `Target.model_validate` is the inverse."""
    return target.model_dump(mode="json")


def canonical_json(value: Any) -> str:
    """JSON text that is equal for equal values, regardless of the order of keys."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
