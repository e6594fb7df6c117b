"""plan: the order of the steps, and an arena offset for every tensor."""

from __future__ import annotations

from typing import Any, NamedTuple

from kiln.scons.bucket_build import buckets_json
from kiln.scons.builders.importing import interface
from kiln.scons.builders.lower import lower
from kiln.scons.model_build import Unit
from kiln.scons.stage import Stage, declare


class Planned(NamedTuple):
    """The outputs of the stage `plan` as SCons nodes, and their folder."""

    folder: str
    plan: Any
    params: Any


def plan(unit: Unit, dump: bool) -> Planned:
    """Declare plan.json and params.raw of a model on a target."""
    config, target, folder = unit.slice("plan"), unit.target_json(), f"{unit.folder}/plan"
    lowered, face, buckets = lower(unit, dump), interface(unit), buckets_json(unit)
    flags = [word for source, _ in lowered for word in ("--in", source)]
    flags += ["--buckets", str(buckets)] if buckets else []
    stage = Stage(
        "plan",
        unit.subject,
        [*flags, "--interface", str(face), "--target", str(target), "--config", str(config), "--out", folder],
        [config, target, face, *([buckets] if buckets else []), *(node for _, fs in lowered for node in fs)],
        [f"{folder}/plan.json", f"{folder}/params.raw"],
    )
    return Planned(folder, *declare(stage))
