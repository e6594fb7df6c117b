"""schema: JSON Schemas of the YAML files, for editors; the files refer to them in their first line."""

from __future__ import annotations

from typing import Any

from kiln.scons.session import session
from kiln.scons.stage import Stage, declare


def schema() -> list[Any]:
    """The schema of a target and of a model."""
    folder = f"{session().build}/schema"
    outputs = [f"{folder}/{kind}.schema.json" for kind in ("target", "model")]
    return declare(Stage("schema", "editors", ["--out", folder], [], outputs))
