"""plan: the order of steps, and a place for every tensor."""

from __future__ import annotations

from typing import Any, NamedTuple

from kiln.scons.builders.lower import lower
from kiln.scons.stage import Stage, declare
from kiln.scons.unit import Unit


class Planned(NamedTuple):
    """The plan's outputs; `folder` is where they lie."""

    folder: str
    plan: Any
    params: Any


def plan(unit: Unit, dump: bool) -> Planned:
    """The plan."""
    config, target, folder = unit.slice("plan"), unit.target_json(), f"{unit.folder}/plan"
    before, files = lower(unit, dump)
    stage = Stage(
        "plan",
        unit.subject,
        ["--in", before, "--target", str(target), "--config", str(config), "--out", folder],
        [config, target, *files],
        [f"{folder}/plan.json", f"{folder}/params.raw"],
    )
    return Planned(folder, *declare(stage))
