"""device-flash, device-installed, device-program and devices: stages that always run when they are a goal."""

from __future__ import annotations

from typing import Any

from kiln.config import canonical_json
from kiln.scons.builders.bundle import bundle
from kiln.scons.builders.checked import common
from kiln.scons.builders.place import Place
from kiln.scons.model_build import Unit
from kiln.scons.session import session
from kiln.scons.stage import Stage, declare, text_file


def on_device(goal: str, unit: Unit, dump: bool, device: str) -> Any:
    """Declare flash, rollback or status of one bundle on one device."""
    place = Place(unit, device)
    flags, inputs = (_flash if goal == "flash" else _installed)(goal, unit, place, dump)
    out = f"{place.folder}/{goal}.json"
    made, marks = ([out], []) if goal == "flash" else ([], [f"{place.folder}/{goal}.shown"])
    stage = Stage(
        "device-flash" if goal == "flash" else "device-installed",
        place.subject,
        [*flags, *place.flags, *(["--out", out] if made else [])],
        [*inputs, *place.inputs],
        made,
        extra_outputs=marks,
        speaks=True,
        foretold=place.foretold(goal),
    )
    return _always(stage)


def of_program(goal: str, program: str, device: str, unit: Unit | None, dump: bool) -> Any:
    """Declare flash, status, run or test of a linked program on a device without a file system.

    `unit` is the model whose golden vectors the program runs on for `test`.
    """
    from kiln.device.deploy.listing import program_listing
    from kiln.device.deploy.registry import device_config, load_device  # only where a device is named

    known = load_device(device)
    folder = f"{session().work}/devices/{known.name}"
    config = text_file(f"{folder}/device.json", canonical_json(device_config(known)))
    out = f"{folder}/{goal}.json"
    flags = ["--goal", goal, "--device", str(config), "--program", program, "--out", out]
    inputs = [config]  # not the program: SCons would expand a $ in its file name
    if unit is not None and goal == "test":
        tolerance = unit.slice("tolerance")
        flags += ["--bundle", unit.bundle, "--tolerance", str(tolerance)]
        inputs += [tolerance, bundle(unit, dump).manifest]
    stage = Stage(
        "device-program",
        f"{program} on {known.name}",
        flags,
        inputs,
        [out],
        speaks=True,
        foretold=lambda: program_listing(goal, known, program),
    )
    return _always(stage)


def devices() -> Any:
    """Declare that the devices in devices/ are listed."""
    shown = f"{session().work}/devices.shown"
    return _always(Stage("devices", "all", [], [], [], extra_outputs=[shown], speaks=True))


def _flash(goal: str, unit: Unit, place: Place, dump: bool) -> tuple[list[str], list[Any]]:
    flags, inputs = common(unit, dump)
    tolerance = unit.slice("tolerance")
    return [*flags, "--tolerance", str(tolerance)], [*inputs, tolerance]


def _installed(goal: str, unit: Unit, place: Place, dump: bool) -> tuple[list[str], list[Any]]:
    # `status` compares with the bundle as it is now, so the bundle is not built first.
    return ["--goal", goal, "--model", unit.name, "--bundle", unit.bundle], []


def _always(stage: Stage) -> Any:
    node = declare(stage)[0]
    session().env.AlwaysBuild(node)
    return node
