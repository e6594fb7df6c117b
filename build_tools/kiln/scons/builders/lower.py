"""lower: kernels and steps for one target."""

from __future__ import annotations

from typing import Any

from kiln.scons.builders.library import byoc, sources
from kiln.scons.builders.specialize import specialize
from kiln.scons.part import Part, parts
from kiln.scons.stage import Stage, declare
from kiln.scons.unit import Unit


def lower(unit: Unit, dump: bool) -> list[tuple[str, list[Any]]]:
    """For each bucket the folder of the lowered module, and its files."""
    return [_lower(part, dump) for part in parts(unit)]


def _lower(part: Part, dump: bool) -> tuple[str, list[Any]]:
    """With `dump`, the IR after each pass as well."""
    unit = part.unit
    config, target, folder = unit.slice("lower"), unit.target_json(), f"{part.folder}/lower"
    before, files = specialize(part, dump)
    chosen = byoc(unit, dump)
    external = [] if chosen is None else ["--byoc", str(chosen)]
    external_files = [] if chosen is None else [chosen, *sources(unit)]
    dumps = f"{part.folder}/dump/lower"
    stage = Stage(
        "lower",
        part.subject,
        ["--in", before, "--target", str(target), "--config", str(config), *external, "--out", folder],
        [config, target, *files, *external_files],
        [f"{folder}/module.json", f"{folder}/params.safetensors", f"{folder}/steps.json"],
        silent_flags=["--dump", dumps] if dump else [],
        extra_outputs=[f"{dumps}.done"] if dump else [],
    )
    return folder, declare(stage)[:3]
