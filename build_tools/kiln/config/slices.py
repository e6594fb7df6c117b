"""The keys of a model that each stage reads: a stage runs again only if its own slice has changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kiln.config.model import Model
from kiln.config.target import Target
from kiln.files import read_json
from kiln.stages import SLICES

_RANGE = ("min", "max", "multiple")


def stage_config(model: Model, name: str) -> dict[str, Any]:
    """A slice of a model's configuration, as plain data; stages declare the slices that they read.

    Always contains `name` and `format`. Raises ValueError for a slice that no stage reads.
    """
    if name not in SLICES:
        raise ValueError(f"no slice '{name}'; known: {', '.join(SLICES)}")
    config = model.model_dump(mode="json", include={"name", "format", *SLICES[name]})
    if name == "tolerance":
        config["tolerance"] = model.tolerance_in_force()
        config["stated"] = model.tolerance.stated
    if config.get("cut"):  # the order of outputs is that of the bundle's, and canonical JSON sorts keys
        config["cut"]["outputs"] = list(config["cut"]["outputs"].items())
    if name != "edges" and "dims" in config:  # the other stages read buckets.json and bucket.json
        config["dims"] = {n: {key: dim[key] for key in _RANGE} for n, dim in config["dims"].items()}
    return config


def target_config(target: Target) -> dict[str, Any]:
    """A target as plain data, the content of target.json. `read_target` is the inverse."""
    return target.model_dump(mode="json")


def read_target(path: Path) -> Target:
    """The target in target.json, which has the content of `target_config`."""
    return Target.model_validate(read_json(path))


def canonical_json(value: Any) -> str:
    """JSON text that is equal for equal values, regardless of the order of keys."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
