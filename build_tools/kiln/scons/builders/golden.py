"""golden: inputs and the outputs that a reference (LiteRT, ONNX Runtime) computes for them."""

from __future__ import annotations

from typing import Any

from kiln.scons.bucket_build import buckets_json
from kiln.scons.builders.fetch import fetch
from kiln.scons.builders.importing import interface
from kiln.scons.builders.padding import padding
from kiln.scons.model_build import Unit
from kiln.scons.stage import Stage, declare


def golden(unit: Unit) -> tuple[str, Any]:
    """Declare the golden vectors; returns their folder and the list of its files."""
    proof = padding(unit)
    config, folder = unit.slice("golden"), f"{unit.of_model}/golden"
    tolerance = unit.slice("tolerance") if proof else None  # the error that padding adds is compared with it
    source, face, buckets = fetch(unit), interface(unit), buckets_json(unit)
    flags = ["--config", str(config), "--source", unit.source, "--interface", str(face)]
    stage = Stage(
        "golden",
        unit.name,
        flags
        + (["--buckets", str(buckets)] if buckets else [])
        + (["--padding", str(proof), "--tolerance", str(tolerance)] if proof else [])
        + ["--out", folder],
        [config, source, face, *filter(None, [buckets, proof, tolerance]), *unit.local_files("golden")],
        [],
        folder=folder,
        listing=f"{folder}.list.json",
        silent_flags=["--called", unit.source_name],
    )
    return folder, declare(stage)[0]
