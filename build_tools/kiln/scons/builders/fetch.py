"""fetch, export: the model's file, from a package, a path or a generator; an archive as an ONNX file."""

from __future__ import annotations

from typing import Any

from kiln.scons.model_build import Unit
from kiln.scons.stage import Stage, declare
from kiln.sources.torch_archive import versions


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


def graph(unit: Unit) -> Any:
    """Declare the file that the stages import; returns its node.

    It is the model's file, or the ONNX file to which an archive of torch.export is converted.
    """
    source = fetch(unit)
    if unit.graph == unit.source:
        return source
    stage = Stage(
        "export",
        unit.name,
        ["--source", unit.source, "--tools", versions(), "--out", unit.graph],
        [source],
        [unit.graph],
        silent_flags=["--called", unit.source_name],
    )
    return declare(stage)[0]
