"""Which stage reads which keys: a stage is run again only when its own slice has changed."""

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
    # With buckets that pad: what they add to a result is held to the tolerance when they are built.
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
    """The part of a model's configuration that one stage reads, as plain data.

    Always holds `name` and `format`. Raises ValueError for a stage that reads none.
    """
    if stage not in _SLICES:
        raise ValueError(f"no slice for stage '{stage}'; known: {', '.join(_SLICES)}")
    found = model.model_dump(mode="json", include={"name", "format", *_SLICES[stage]})
    if stage == "tolerance":
        found["tolerance"] = model.tolerance_in_force()
    if stage != "edges" and "dims" in found:  # how the sizes are served is in buckets.json and bucket.json
        found["dims"] = {n: {key: dim[key] for key in _RANGE} for n, dim in found["dims"].items()}
    return found


def target_config(target: Target) -> dict[str, Any]:
    """All of a target as plain data: what target.json holds. `Target.model_validate` reads it back."""
    return target.model_dump(mode="json")


def canonical_json(value: Any) -> str:
    """JSON text that is equal for equal values, whatever the order of their keys."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
