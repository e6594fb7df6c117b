"""size --print: prints the table of sizes from size.json."""

from __future__ import annotations

from typing import Any

from kiln.scons.builders.library import choice
from kiln.scons.builders.size import size
from kiln.scons.model_build import Unit
from kiln.scons.session import session
from kiln.scons.stage import Stage, declare


def shown(unit: Unit, dump: bool) -> Any:
    """Declare that the table of sizes is printed.

    AlwaysBuild makes the stage run in every build with `size`.
    """
    figures = size(unit, dump)
    out = f"{unit.folder}/size.shown"
    given, inputs = ["--print", str(figures)], [figures]
    if unit.byoc.auto and unit.auto is None:  # else `unit.auto` was printed at the start of the build
        chosen = choice(unit, dump)
        given += ["--byoc", str(chosen)]
        inputs.append(chosen)
    stage = Stage("size", unit.subject, given, inputs, [], extra_outputs=[out], speaks=True)
    node = declare(stage)[0]
    session().env.AlwaysBuild(node)
    return node
