"""link: objects to a static and a shared library, and their headers."""

from __future__ import annotations

from typing import Any

from kiln.scons.builders.compiled import generated, runtime
from kiln.scons.builders.library import libraries
from kiln.scons.builders.objects import objects
from kiln.scons.builders.plan import plan
from kiln.scons.builders.source import source
from kiln.scons.model_build import Unit
from kiln.scons.stage import Stage, declare


def linked(unit: Unit, dump: bool) -> tuple[str, Any]:
    """Declare libraries and headers; returns the folder of include/ and lib/ and the list of its files."""
    target, folder, planned = unit.target_json(), f"{unit.folder}/link", plan(unit, dump)
    given, source_files = source(unit, dump)
    parts = [objects(unit, dump), generated(unit, dump), runtime(unit)]
    flags = ["--name", unit.name, "--target", str(target), "--plan", str(planned.plan), "--source", given]
    external, external_files = libraries(unit)
    stage = Stage(
        "link",
        unit.subject,
        [*flags, *external, "--out", folder, *(place for place, _ in parts)],
        [target, planned.plan, *source_files, *(files for _, files in parts), *external_files],
        [],
        folder=folder,
        listing=f"{folder}.list.json",
    )
    return folder, declare(stage)[0]
