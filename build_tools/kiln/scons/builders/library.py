"""library: external libraries for a target, found here or fetched; and what `lower` is told of them."""

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
    """The flags that name the folders of the libraries, and their files; nothing without byoc."""
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
    """byoc.json: which backends are asked, and with `auto` what computes each part; None without any."""
    if not unit.backends:
        return None
    names = [backend.name for backend in unit.backends]
    asked = {"byoc": unit.byoc.model_dump(mode="json"), "backends": names}
    if unit.byoc.auto:
        asked["absent"] = unit.absent
    config = text_file(f"{unit.folder}/byoc.json", canonical_json(asked))
    return _chosen(unit, dump, config) if unit.byoc.auto else config


def choice(unit: Unit, dump: bool) -> Any:
    """With `byoc=auto`, what computes each part and why, as a file; None without `auto`."""
    if not unit.byoc.auto:
        return None
    if unit.auto is None:
        return byoc(unit, dump)
    nothing: dict[str, Any] = {"backends": [], "measured_on": None, "parts": [], "summary": unit.auto}
    return text_file(f"{unit.folder}/byoc-chosen.json", canonical_json(nothing))


def sources(unit: Unit) -> list[Any]:
    """The user's own backends."""
    return [node for backend in unit.backends for node in _source(backend.name)]


def _chosen(unit: Unit, dump: bool, config: Any) -> Any:
    """byoc.json with what computes each part, by times; of all buckets, which share their weights."""
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
