"""External libraries in the build graph: their files, and the subgraphs that each of them computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiln.scons.model_build import ModelBuild
from kiln.scons.outside import own_sources
from kiln.scons.place import RunPlace
from kiln.scons.stage import declare
from kiln.stages.target import ChooseStage, LibraryStage


@dataclass(frozen=True)
class Libraries:
    """External libraries that compute subgraphs of a model.

    `folders`: the output of the library stage for each library. `byoc`: the byoc.json for `lower`, which
    names the backends; None where no backend is used. `choice`: the file with the choices of `byoc=auto` and
    their reasons; None without `auto`. `sources`: source files of the user's own backends, as SCons nodes.
    """

    folders: Sequence[Path]
    byoc: Path | None
    choice: Path | None
    sources: Sequence[Any]


def declare_libraries(unit: ModelBuild, graphs: Sequence[Path]) -> Libraries:
    """Declare the external libraries, and with `byoc=auto` the measurement that chooses among them.

    `graphs`: folders of the graphs of all buckets.
    """
    target, choice_file = unit.target_json(), unit.folder / "byoc-chosen.json"
    if not unit.backends:
        return Libraries([], None, unit.no_choice_file(choice_file) if unit.byoc.auto else None, [])
    folders = [
        declare(
            LibraryStage(backend=name, target=target, out=unit.of_target / "libraries" / name),
            f"{unit.target.name}/{name}",
            more=own_sources([name]),
        ).out
        for name in unit.backend_names
    ]
    byoc, sources = unit.byoc_json(), own_sources(unit.backend_names)
    if not unit.byoc.auto:
        return Libraries(folders, byoc, None, sources)
    run_place = RunPlace(unit)
    choice = declare(
        ChooseStage(
            sources=tuple(graphs),
            target=target,
            config=unit.slice("lower"),
            byoc=byoc,
            libraries=tuple(folders),
            device=run_place.config,
            times=unit.of_target / "byoc-times.json",
            out=choice_file,
        ),
        run_place.subject,
        more=sources,
    ).out
    return Libraries(folders, choice, choice, sources)
