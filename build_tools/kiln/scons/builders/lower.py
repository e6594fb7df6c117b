"""lower: from the simplified graph to the kernels and steps for one target."""

from __future__ import annotations

from typing import Any

from kiln.scons.bucket_build import Part, parts
from kiln.scons.builders.library import byoc, sources
from kiln.scons.builders.specialize import specialize
from kiln.scons.model_build import Unit
from kiln.scons.stage import Stage, declare


def lower(unit: Unit, dump: bool) -> list[tuple[str, list[Any]]]:
    """Declare the lowering of every bucket.

    Returns for each the folder of the lowered module and its files.
    """
    packings = _packings(unit, dump)
    return [_lower(part, packings, dump) for part in parts(unit)]


def _packings(unit: Unit, dump: bool) -> Any:
    """Declare packings.json: the packed forms of the weights that buckets share; None for a single bucket."""
    before = [specialize(part, dump) for part in parts(unit)]
    if len(before) < 2:
        return None
    config, target, folder = unit.slice("lower"), unit.target_json(), f"{unit.folder}/packings"
    flags = [word for source, _ in before for word in ("--in", source)]
    stage = Stage(
        "packings",
        unit.subject,
        [*flags, "--target", str(target), "--config", str(config), "--out", folder],
        [config, target, *(node for _, files in before for node in files)],
        [f"{folder}/packings.json"],
    )
    return declare(stage)[0]


def _lower(part: Part, packings: Any, dump: bool) -> tuple[str, list[Any]]:
    """Declare the lowering of one bucket; with `dump` the stage also writes the IR after each pass."""
    unit = part.unit
    config, target, folder = unit.slice("lower"), unit.target_json(), f"{part.folder}/lower"
    before, files = specialize(part, dump)
    chosen = byoc(unit, dump)
    external = [] if chosen is None else ["--byoc", str(chosen)]
    external_files = [] if chosen is None else [chosen, *sources(unit)]
    shared = [] if packings is None else ["--packings", str(packings)]
    dumps = f"{part.folder}/dump/lower"
    flags = ["--in", before, "--target", str(target), "--config", str(config), *external, *shared]
    stage = Stage(
        "lower",
        part.subject,
        [*flags, "--out", folder],
        [config, target, *files, *external_files, *([] if packings is None else [packings])],
        [f"{folder}/module.json", f"{folder}/params.safetensors", f"{folder}/steps.json"],
        silent_flags=["--dump", dumps] if dump else [],
        extra_outputs=[f"{dumps}.done"] if dump else [],
    )
    return folder, declare(stage)[:3]
