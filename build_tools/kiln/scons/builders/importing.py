"""import: the model's file as a Relax module, its parameters, and a description of its inputs and outputs."""

from __future__ import annotations

from typing import Any, NamedTuple

from kiln.scons.bucket_build import Part, buckets_json, parts
from kiln.scons.builders.fetch import graph
from kiln.scons.model_build import Unit
from kiln.scons.stage import Stage, declare


class Imported(NamedTuple):
    """The outputs of the stage `import` as SCons nodes, and their folder."""

    folder: str
    module: Any
    params: Any
    interface: Any


def importing(part: Part) -> Imported:
    """Declare the import of a static model, or of one bucket of a model."""
    unit, bucket = part.unit, part.bucket_json()
    config, source, folder = unit.slice("import"), graph(unit), f"{part.of_model}/import"
    stage = Stage(
        "import",
        part.model_subject,
        ["--config", str(config), "--source", unit.graph, "--out", folder]
        + (["--bucket", str(bucket)] if bucket else []),
        [config, source, *([bucket] if bucket else [])],
        [f"{folder}/module.json", f"{folder}/params.safetensors", f"{folder}/interface.json"],
        silent_flags=["--called", unit.source_name],
    )
    return Imported(folder, *declare(stage))


def interface(unit: Unit) -> Any:
    """Declare interface.json: the inputs and outputs of the model, over all buckets."""
    buckets, found = buckets_json(unit), [importing(part).interface for part in parts(unit)]
    if buckets is None:
        return found[0]
    config, out = unit.slice("import"), f"{unit.of_model}/interface.json"
    stage = Stage(
        "interface",
        unit.name,
        ["--buckets", str(buckets), "--config", str(config), "--out", out, *map(str, found)],
        [buckets, config, *found],
        [out],
    )
    return declare(stage)[0]
