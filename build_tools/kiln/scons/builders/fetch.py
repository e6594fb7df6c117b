"""fetch: the model's file, copied from a package or a path, or written by a generator."""

from __future__ import annotations

from typing import Any

from kiln.scons.model_build import Unit
from kiln.scons.stage import Stage, declare


def fetch(unit: Unit) -> Any:
    """Declare the model's file; returns its node."""
    config = unit.slice("fetch")
    stage = Stage(
        "fetch",
        unit.name,
        ["--config", str(config), "--out", unit.source],
        [config, *unit.local_files("fetch")],
        [unit.source],
    )
    return declare(stage)[0]
