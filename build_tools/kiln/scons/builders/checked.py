"""device-test, device-run and device-bench: run a finished bundle on its target's runner, or on a device."""

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
    """Declare test.json: the errors of the bundle's outputs on the golden vectors."""
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
    if device is not None:  # the state of a device cannot be read from files
        session().env.AlwaysBuild(node)
    return node


def ran(unit: Unit, dump: bool, image: str | None, device: str | None) -> Any:
    """Declare run.json: the bundle's result for an image. The stage runs in every build, as it prints it."""
    place, config = Place(unit, device), unit.slice("run")
    needs.check([unit.target], ["run"], place.device)
    flags, inputs = common(unit, dump)
    planned = plan(unit, dump).plan
    flags, inputs = [*flags, *place.flags, "--plan", str(planned)], [*inputs, *place.inputs, planned]
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
    """Declare bench.json, or with `steps` profile.json, an HTML page and a trace next to the bundle.

    Both hold run times; the stage runs in every build.
    """
    place, name = Place(unit, device), "profile" if steps else "bench"
    needs.check([unit.target], [name], place.device)
    flags, inputs = common(unit, dump)
    planned = plan(unit, dump).plan
    flags, inputs = [*flags, "--plan", str(planned)], [*inputs, planned]
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
    beside = f"{unit.bundle}{f'.{device_name}' if (device_name := place.device_name) else ''}"
    page, trace = f"{beside}.profile.html", f"{beside}.trace.json"
    flags = ["--profile", out, "--out", page, "--trace", trace]
    drawn = Stage("profile", place.subject, flags, [node], [page, trace], speaks=True)
    return declare(drawn)[0]


def common(unit: Unit, dump: bool) -> tuple[list[str], list[Any]]:
    """Flags and inputs that all stages that run a bundle share."""
    target, made = unit.target_json(), bundle(unit, dump)
    flags = ["--bundle", unit.bundle, "--target", str(target)]
    return [*flags, "--work", f"{unit.folder}/device"], [target, made.manifest]
