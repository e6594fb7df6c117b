"""Chooses automatic buckets (`auto`) before SCons plans the build, since each bucket has stages of its own.

The choice is stored in the model's folder with a digest of everything that it depends on; while the digest is
unchanged, nothing runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kiln.config import canonical_json, stage_config
from kiln.config.dims import Bucket
from kiln.errors import KilnError
from kiln.files import atomic_write, json_text, read_json, write_json
from kiln.scons import digest
from kiln.scons.model_build import ModelBuild
from kiln.scons.session import session
from kiln.sources.cache import file_sha256
from kiln.stage import Stage
from kiln.stages.model import CutStage, EdgesStage, ExportStage, FetchStage

_buckets: dict[str, dict[str, list[Bucket]]] = {}


def chosen_buckets(unit: ModelBuild) -> Mapping[str, Sequence[Bucket]]:
    """The buckets of the dimensions with `auto`; a new choice is printed as a table.

    Raises KilnError for a traffic or cost file that cannot be used.
    """
    if not any(dim.auto for dim in unit.model.dims.values()):
        return {}
    if unit.name not in _buckets:
        choice = _choice(unit)["buckets"]
        _buckets[unit.name] = {
            name: [Bucket.model_validate(bucket) for bucket in buckets] for name, buckets in choice.items()
        }
    return _buckets[unit.name]


def _choice(unit: ModelBuild) -> dict[str, Any]:
    folder = unit.of_model / "edges"
    key, chosen_file = _key(unit), folder / "chosen.json"
    before = _kept(chosen_file)
    if before.get("key") == key:
        return before
    for name in ("fetch", "edges"):
        atomic_write(folder / f"{name}.config.json", canonical_json(stage_config(unit.model, name)))
    source, out = folder / f"source.{unit.model.format}", folder / "edges.json"
    _run(unit, FetchStage(config=folder / "fetch.config.json", out=source))
    graph = source
    if unit.model.format == "pt2":
        graph = folder / "source.onnx"
        _run(unit, ExportStage(source=source, called=unit.source_name, out=graph))
    if unit.model.cut is not None:
        atomic_write(folder / "cut.config.json", canonical_json(stage_config(unit.model, "cut")))
        cut_graph, whole_graph = folder / f"cut{graph.suffix}", graph
        config = folder / "cut.config.json"
        sizes, called = unit.program_sizes, unit.source_name
        _run(unit, CutStage(config=config, source=whole_graph, sizes=sizes, called=called, out=cut_graph))
        graph = cut_graph
    config, called = folder / "edges.config.json", unit.source_name
    table = _run(unit, EdgesStage(config=config, source=graph, called=called, out=out))
    print(table, end="", flush=True)
    choice = {**read_json(out), "key": key, "table": table}
    write_json(chosen_file, {**choice, "digest": _digest(choice)})
    source.unlink()
    graph.unlink(missing_ok=True)
    return choice


def _kept(chosen_file: Path) -> dict[str, Any]:
    """The choice in the file; empty where there is none, or it is damaged."""
    try:
        choice = dict(read_json(chosen_file))
        return choice if choice.pop("digest") == _digest(choice) else {}
    except (KilnError, KeyError, TypeError, ValueError):
        return {}


def _digest(choice: Mapping[str, Any]) -> str:
    return hashlib.sha256(json_text(choice).encode()).hexdigest()


def _key(unit: ModelBuild) -> str:
    """A digest of everything that the choice depends on."""
    words = [canonical_json(stage_config(unit.model, name)) for name in ("fetch", "cut", "edges")]
    words += [unit.program_sizes]
    words += [digest.of_stage(name) for name in ("fetch", "edges")]
    tables = [
        path for dim in unit.model.dims.values() for path in (dim.traffic, dim.costs) if path is not None
    ]
    # A missing file is reported by the stage.
    files = [*map(Path, tables), *(Path(node.abspath) for node in unit.local_files("fetch"))]
    words += [file_sha256(path) for path in files if path.is_file()]
    return hashlib.sha256("\0".join(words).encode()).hexdigest()


def _run(unit: ModelBuild, stage: Stage) -> str:
    name = stage.spec.name
    session().console.line(f"kiln: {unit.name}: {name}, to choose its buckets", progress=True)
    status, stdout, stderr = session().server.run(name, stage.words())
    if status != 0:
        lines = [line for line in stderr.splitlines() if line.startswith("kiln: error: ")]
        reason = lines[-1].removeprefix("kiln: error: ") if lines else f"{name} crashed: {stderr[-300:]}"
        raise KilnError(" ".join(reason.split()))
    return stdout
