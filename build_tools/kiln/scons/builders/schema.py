"""schema: JSON Schemas of the YAML files, for editors; the files refer to them in their first line."""

from __future__ import annotations

from typing import Any

from kiln.scons.session import session
from kiln.scons.stage import Stage, declare


def schema() -> list[Any]:
    """Declare the JSON Schemas of targets, models and devices."""
    folder = f"{session().build}/schema"
    outputs = [f"{folder}/{kind}.schema.json" for kind in ("target", "model")]
    out = f"{folder}/device.schema.json"
    device = Stage("device-schema", "editors", ["--out", out], [], [out])
    return [*declare(Stage("schema", "editors", ["--out", folder], [], outputs)), *declare(device)]
