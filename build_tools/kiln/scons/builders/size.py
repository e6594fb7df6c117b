"""size: flash and RAM of a model, checked against its budgets."""

from __future__ import annotations

from typing import Any

from kiln.scons.builders.linked import linked
from kiln.scons.builders.objects import objects
from kiln.scons.builders.plan import plan
from kiln.scons.model_build import Unit
from kiln.scons.stage import Stage, declare


def size(unit: Unit, dump: bool) -> Any:
    """Declare size.json; the stage fails, and writes no file, when a budget is exceeded."""
    config, target = unit.slice("budget"), unit.target_json()
    planned, (folder, files) = plan(unit, dump), linked(unit, dump)
    out = f"{unit.folder}/size.json"
    given = [
        "--target",
        str(target),
        "--plan",
        str(planned.plan),
        "--bundle",
        folder,
        "--config",
        str(config),
    ]
    inputs = [config, target, planned.plan, files]
    if unit.target.cuda is not None:
        made, made_files = objects(unit, dump)
        given += ["--usage", f"{made}/usage.json"]
        inputs.append(made_files)
    stage = Stage(
        "size",
        unit.subject,
        [*given, "--work", f"{unit.folder}/device", "--quiet", "--out", out],
        inputs,
        [out],
        speaks=True,
    )
    return declare(stage)[0]
