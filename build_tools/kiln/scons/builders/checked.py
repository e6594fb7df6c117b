"""device-test and device-run: a finished bundle on its target's runner, or on a device."""

from __future__ import annotations

from typing import Any

from kiln.scons import needs
from kiln.scons.builders.bundle import bundle
from kiln.scons.builders.place import Place
from kiln.scons.builders.plan import plan
from kiln.scons.model_build import Unit
from kiln.scons.session import session
from kiln.scons.stage import Stage, declare


def tested(unit: Unit, dump: bool, device: str | None) -> Any:
    """test.json: how far the outputs for the golden inputs lie from the reference's."""
    place, tolerance = Place(unit, device), unit.slice("tolerance")
    needs.check([unit.target], ["test"], place.device)
    flags, inputs = common(unit, dump)
    out = f"{place.folder}/test.json"
    stage = Stage(
        "device-test",
        place.subject,
        [*flags, *place.flags, "--tolerance", str(tolerance), "--out", out],
        [*inputs, *place.inputs, tolerance],
        [out],
        speaks=True,
        foretold=place.foretold("test"),
    )
    node = declare(stage)[0]
    if device is not None:  # what a device does today is not known from files
        session().env.AlwaysBuild(node)
    return node


def ran(unit: Unit, dump: bool, image: str | None, device: str | None) -> Any:
    """run.json: what the bundle says about a picture. Made anew each time, for the sake of what it prints."""
    place, config = Place(unit, device), unit.slice("run")
    needs.check([unit.target], ["run"], place.device)
    flags, inputs = common(unit, dump)
    flags, inputs = [*flags, *place.flags], [*inputs, *place.inputs]
    out = f"{place.folder}/run.json"
    stage = Stage(
        "device-run",
        place.subject,
        [*flags, "--config", str(config), *(["--image", image] if image else []), "--out", out],
        [*inputs, config],
        [out],
        speaks=True,
        foretold=place.foretold("run"),
    )
    node = declare(stage)[0]
    session().env.AlwaysBuild(node)
    return node


def timed(unit: Unit, dump: bool, device: str | None, steps: bool) -> Any:
    """bench.json, or profile.json and a page beside the bundle: how fast it is. Made anew each time."""
    place, name = Place(unit, device), "profile" if steps else "bench"
    needs.check([unit.target], [name], place.device)
    flags, inputs = common(unit, dump)
    out = f"{place.folder}/{name}.json"
    stage = Stage(
        "device-bench",
        place.subject,
        [*flags, *place.flags, *(["--steps"] if steps else []), "--out", out],
        [*inputs, *place.inputs],
        [out],
        speaks=True,
        foretold=place.foretold(name),
    )
    node = declare(stage)[0]
    session().env.AlwaysBuild(node)
    if not steps:
        return node
    page = f"{unit.bundle}{f'.{device_name}' if (device_name := place.device_name) else ''}.profile.html"
    drawn = Stage("profile", place.subject, ["--profile", out, "--out", page], [node], [page], speaks=True)
    return declare(drawn)[0]


def common(unit: Unit, dump: bool) -> tuple[list[str], list[Any]]:
    """Flags and inputs of all stages that run a bundle."""
    target, planned, made = unit.target_json(), plan(unit, dump).plan, bundle(unit, dump)
    flags = ["--bundle", unit.bundle, "--target", str(target), "--plan", str(planned)]
    return [*flags, "--work", f"{unit.folder}/device"], [target, planned, made.manifest]
