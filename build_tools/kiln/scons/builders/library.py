"""library: external libraries for a target, found here or fetched; and what `lower` is told of them."""

from __future__ import annotations

from typing import Any

from kiln.config import canonical_json
from kiln.scons.session import session
from kiln.scons.stage import Stage, declare, text_file
from kiln.scons.unit import Unit


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


def byoc(unit: Unit) -> tuple[list[str], list[Any]]:
    """What `lower` gets: the configuration, and the sources of the user's own backends."""
    if not unit.backends:
        return [], []
    names = [backend.name for backend in unit.backends]
    text = canonical_json({"byoc": unit.byoc.model_dump(mode="json"), "backends": names})
    config = text_file(f"{unit.folder}/byoc.json", text)
    return ["--byoc", str(config)], [config, *(node for name in names for node in _source(name))]


def _source(name: str) -> list[Any]:
    from kiln.byoc.backends import source

    path = source(name)
    return [] if path is None else [session().env.File(str(path))]
