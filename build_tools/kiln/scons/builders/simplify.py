"""simplify: the canonical graph, which all targets share."""

from __future__ import annotations

from typing import Any

from kiln.scons.bucket_build import Part
from kiln.scons.builders.importing import importing
from kiln.scons.stage import Stage, declare


def simplify(part: Part, dump: bool) -> tuple[str, list[Any]]:
    """Declare the simplified module.

    Returns its folder and files. `dump`: also write the IR after each pass.
    """
    imported, folder = importing(part), f"{part.of_model}/simplify"
    dumps = f"{part.of_model}/dump/simplify"
    stage = Stage(
        "simplify",
        part.model_subject,
        ["--in", imported.folder, "--out", folder],
        [*imported[1:]],
        [f"{folder}/module.json", f"{folder}/params.safetensors", f"{folder}/interface.json"],
        silent_flags=["--dump", dumps] if dump else [],
        extra_outputs=[f"{dumps}.done"] if dump else [],
    )
    return folder, declare(stage)[:3]
