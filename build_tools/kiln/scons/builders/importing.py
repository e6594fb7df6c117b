"""import: the model's file as a Relax module, its parameters, and a description of its inputs and outputs."""

from __future__ import annotations

from typing import Any, NamedTuple

from kiln.scons.builders.fetch import fetch
from kiln.scons.stage import Stage, declare
from kiln.scons.unit import Unit


class Imported(NamedTuple):
    """The import's outputs; `folder` is where they lie."""

    folder: str
    module: Any
    params: Any
    interface: Any


def importing(unit: Unit) -> Imported:
    """The imported model."""
    config, source, folder = unit.slice("import"), fetch(unit), f"{unit.of_model}/import"
    stage = Stage(
        "import",
        unit.name,
        ["--config", str(config), "--source", unit.source, "--out", folder],
        [config, source],
        [f"{folder}/module.json", f"{folder}/params.safetensors", f"{folder}/interface.json"],
        silent_flags=["--called", unit.source_name],
    )
    return Imported(folder, *declare(stage))
