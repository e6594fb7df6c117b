"""emit-source: the plan as C, the model's header, and the parameters ready to link or to load."""

from __future__ import annotations

from typing import Any

from kiln.scons.builders.plan import plan
from kiln.scons.model_build import Unit
from kiln.scons.stage import Stage, declare


def source(unit: Unit, dump: bool) -> tuple[str, list[Any]]:
    """Declare the generated source; returns its folder and files."""
    folder, planned = f"{unit.folder}/source", plan(unit, dump)
    stage = Stage(
        "emit-source",
        unit.subject,
        ["--plan", planned.folder, "--out", folder],
        [planned.plan, planned.params],
        [f"{folder}/{unit.name}{end}" for end in (".h", "_plan.c", "_params.S")] + [f"{folder}/params.bin"],
    )
    return folder, declare(stage)
