"""golden: inputs, and what a reference that is not Kiln makes of them."""

from __future__ import annotations

from typing import Any

from kiln.scons.builders.fetch import fetch
from kiln.scons.builders.importing import importing
from kiln.scons.stage import Stage, declare
from kiln.scons.unit import Unit


def golden(unit: Unit) -> tuple[str, Any]:
    """The folder of the golden vectors, and the list of its files."""
    config, folder = unit.slice("golden"), f"{unit.of_model}/golden"
    source, interface = fetch(unit), importing(unit).interface
    stage = Stage(
        "golden",
        unit.name,
        ["--config", str(config), "--source", unit.source, "--interface", str(interface), "--out", folder],
        [config, source, interface, *unit.local_files("golden")],
        [],
        folder=folder,
        listing=f"{folder}.list.json",
    )
    return folder, declare(stage)[0]
