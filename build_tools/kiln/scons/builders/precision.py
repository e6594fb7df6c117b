"""precision: the error of a model in a lower precision than float32, measured at build time."""

from __future__ import annotations

from typing import Any

from kiln.scons.bucket_build import parts
from kiln.scons.builders.golden import golden
from kiln.scons.builders.specialize import specialize
from kiln.scons.model_build import Unit
from kiln.scons.stage import Stage, declare


def precision(unit: Unit, dump: bool) -> Any:
    """Declare precision.json; None for a model in float32."""
    if unit.model.precision == "fp32":
        return None
    config, tolerance = unit.slice("precision"), unit.slice("tolerance")
    vectors, vector_files = golden(unit)
    graphs = [specialize(part, dump) for part in parts(unit)]
    out = f"{unit.folder}/precision.json"
    flags = [word for folder, _ in graphs for word in ("--in", folder)]
    flags += ["--golden", vectors, "--config", str(config), "--tolerance", str(tolerance), "--out", out]
    files = [node for _, nodes in graphs for node in nodes]
    return declare(Stage("precision", unit.subject, flags, [config, tolerance, vector_files, *files], [out]))[
        0
    ]
