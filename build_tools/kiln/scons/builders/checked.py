"""device-test and device-run: a finished bundle on its target's runner."""

from __future__ import annotations

from typing import Any

from kiln.scons.builders.bundle import bundle
from kiln.scons.builders.plan import plan
from kiln.scons.session import session
from kiln.scons.stage import Stage, declare
from kiln.scons.unit import Unit


def tested(unit: Unit, dump: bool) -> Any:
    """test.json: how far the outputs for the golden inputs lie from the reference's."""
    out, tolerance = f"{unit.folder}/test.json", unit.slice("tolerance")
    flags, inputs = _common(unit, dump)
    stage = Stage(
        "device-test",
        unit.subject,
        [*flags, "--tolerance", str(tolerance), "--out", out],
        [*inputs, tolerance],
        [out],
        speaks=True,
    )
    return declare(stage)[0]


def ran(unit: Unit, dump: bool, image: str | None) -> Any:
    """run.json: what the bundle says about a picture. Made anew each time, for the sake of what it prints."""
    out, config = f"{unit.folder}/run.json", unit.slice("run")
    flags, inputs = _common(unit, dump)
    stage = Stage(
        "device-run",
        unit.subject,
        [*flags, "--config", str(config), *(["--image", image] if image else []), "--out", out],
        [*inputs, config],
        [out],
        speaks=True,
    )
    node = declare(stage)[0]
    session().env.AlwaysBuild(node)
    return node


def _common(unit: Unit, dump: bool) -> tuple[list[str], list[Any]]:
    target, planned, made = unit.target_json(), plan(unit, dump).plan, bundle(unit, dump)
    flags = ["--bundle", unit.bundle, "--target", str(target), "--plan", str(planned)]
    return [*flags, "--work", f"{unit.folder}/device"], [target, planned, made.manifest]
