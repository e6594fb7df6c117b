"""emit-objects: kernels to object files."""

from __future__ import annotations

from typing import Any

from kiln.scons.builders.compiled import runtime_source
from kiln.scons.builders.library import libraries
from kiln.scons.builders.lower import lower
from kiln.scons.builders.plan import plan
from kiln.scons.model_build import Unit
from kiln.scons.session import session
from kiln.scons.stage import Stage, declare


def objects(unit: Unit, dump: bool) -> tuple[str, Any]:
    """Declare the kernels' objects; returns their folder and the list of its files."""
    target, folder = unit.target_json(), f"{unit.folder}/objects"
    lowered, planned = lower(unit, dump), plan(unit, dump)
    flags = [word for source, _ in lowered for word in ("--in", source)]
    external, external_files = libraries(unit)
    flags += external
    # For a library that is loaded at run time on the device, a part of the runtime is compiled too.
    external_files += [runtime_source()] if unit.target.cuda is not None and unit.backends else []
    flags += ["--plan", planned.folder, "--target", str(target), "--cache", f"{session().work}/kernels"]
    stage = Stage(
        "emit-objects",
        unit.subject,
        [*flags, "--out", folder],
        [target, planned.plan, *(node for _, files in lowered for node in files), *external_files],
        [],
        folder=folder,
        listing=f"{folder}.list.json",
    )
    return folder, declare(stage)[0]
