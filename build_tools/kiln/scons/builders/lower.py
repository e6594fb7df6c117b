"""lower: kernels and steps for one target."""

from __future__ import annotations

from typing import Any

from kiln.scons.builders.simplify import simplify
from kiln.scons.stage import Stage, declare
from kiln.scons.unit import Unit


def lower(unit: Unit, dump: bool) -> tuple[str, list[Any]]:
    """The folder of the lowered module, and its files. With `dump`, the IR after each pass as well."""
    config, target, folder = unit.slice("lower"), unit.target_json(), f"{unit.folder}/lower"
    before, files = simplify(unit, dump)
    dumps = f"{unit.folder}/dump/lower"
    stage = Stage(
        "lower",
        unit.subject,
        ["--in", before, "--target", str(target), "--config", str(config), "--out", folder],
        [config, target, *files],
        [f"{folder}/module.json", f"{folder}/params.safetensors", f"{folder}/steps.json"],
        silent_flags=["--dump", dumps] if dump else [],
        extra_outputs=[f"{dumps}.done"] if dump else [],
    )
    return folder, declare(stage)[:3]
