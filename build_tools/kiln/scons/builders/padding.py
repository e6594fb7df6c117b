"""padding: the proof that pad buckets do not change the result, and the values that pad the inputs."""

from __future__ import annotations

from typing import Any

from kiln.scons.bucket_build import buckets_json, parts
from kiln.scons.builders.fetch import graph
from kiln.scons.builders.importing import interface
from kiln.scons.model_build import Unit
from kiln.scons.stage import Stage, declare


def padding(unit: Unit) -> Any:
    """Declare padding.json; None for a model without pad buckets."""
    if not any(s.strategy == "pad" for part in parts(unit) for s in part.box.dims.values()):
        return None
    config, out = unit.slice("padding"), f"{unit.of_model}/padding/padding.json"
    source, face, buckets = graph(unit), interface(unit), buckets_json(unit)
    flags = ["--config", str(config), "--source", unit.graph, "--interface", str(face)]
    stage = Stage(
        "padding",
        unit.name,
        [*flags, "--buckets", str(buckets), "--out", out],
        [config, source, face, buckets],
        [out],
        silent_flags=["--called", unit.source_name],
    )
    return declare(stage)[0]
