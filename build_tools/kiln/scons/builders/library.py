"""library: external libraries for a target, found on this machine or fetched; and byoc.json for `lower`."""

from __future__ import annotations

from typing import Any

from kiln.config import canonical_json
from kiln.scons.bucket_build import parts
from kiln.scons.builders.place import Place
from kiln.scons.builders.specialize import specialize
from kiln.scons.model_build import Unit
from kiln.scons.session import session
from kiln.scons.stage import Stage, declare, text_file


def libraries(unit: Unit) -> tuple[list[str], list[Any]]:
    """Declare the external libraries.

    Returns the flags `--library FOLDER` and the nodes. Empty without byoc.
    """
    target, flags, inputs = unit.target_json(), [], []
    for backend in unit.backends:
        folder = f"{unit.of_target}/libraries/{backend.name}"
        stage = Stage(
            "library",
            f"{unit.target.name}/{backend.name}",
            ["--backend", backend.name, "--target", str(target), "--out", folder],
            [target, *_source(backend.name)],
            [],
            folder=folder,
            listing=f"{folder}.list.json",
        )
        flags += ["--library", folder]
        inputs += declare(stage)
    return flags, inputs


def byoc(unit: Unit, dump: bool) -> Any:
    """Declare byoc.json: the backends to use, and with `auto` the choice for each subgraph.

    None where no backend is used.
    """
    if not unit.backends:
        return None
    names = [backend.name for backend in unit.backends]
    asked = {"byoc": unit.byoc.model_dump(mode="json"), "backends": names}
    if unit.byoc.auto:
        asked["absent"] = unit.absent
    config = text_file(f"{unit.folder}/byoc.json", canonical_json(asked))
    return _chosen(unit, dump, config) if unit.byoc.auto else config


def choice(unit: Unit, dump: bool) -> Any:
    """Declare the file of `byoc=auto` with the choice for each subgraph and its reason.

    None without `auto`.
    """
    if not unit.byoc.auto:
        return None
    if unit.auto is None:
        return byoc(unit, dump)
    nothing: dict[str, Any] = {"backends": [], "measured_on": None, "parts": [], "summary": unit.auto}
    return text_file(f"{unit.folder}/byoc-chosen.json", canonical_json(nothing))


def sources(unit: Unit) -> list[Any]:
    """Source files of backends that the user wrote, as SCons nodes."""
    return [node for backend in unit.backends for node in _source(backend.name)]


def _chosen(unit: Unit, dump: bool, config: Any) -> Any:
    """Declare byoc.json with the fastest choice for each subgraph, as measured.

    One file for all buckets, since buckets share their weights.
    """
    flags, inputs = libraries(unit)
    place, lower, target = Place(unit, unit.device), unit.slice("lower"), unit.target_json()
    out = f"{unit.folder}/byoc-chosen.json"
    for part in parts(unit):
        folder, files = specialize(part, dump)
        flags += ["--in", folder]
        inputs += files
    stage = Stage(
        "byoc-choose",
        place.subject,
        [
            *(*flags, *place.flags, "--target", str(target), "--config", str(lower), "--byoc", str(config)),
            *("--times", f"{unit.of_target}/byoc-times.json", "--out", out),
        ],
        [*inputs, *place.inputs, target, lower, config, *sources(unit)],
        [out],
        speaks=True,
    )
    return declare(stage)[0]


def _source(name: str) -> list[Any]:
    from kiln.byoc.registry import source

    path = source(name)
    return [] if path is None else [session().file(str(path))]
