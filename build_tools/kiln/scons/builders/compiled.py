"""compile: C to objects by the target's own compiler; the runtime once for all models of a target."""

from __future__ import annotations

from typing import Any

from kiln.paths import data_dir
from kiln.scons import digest
from kiln.scons.builders.source import source
from kiln.scons.model_build import Unit
from kiln.scons.session import session
from kiln.scons.stage import Stage, declare


def runtime(unit: Unit) -> tuple[str, Any]:
    """The folder of the runtime's objects, and the list of its files."""
    target, folder = unit.target_json(), f"{unit.of_target}/runtime-{unit.threads}"
    stage = Stage(
        "compile",
        f"{unit.target.name}/runtime",
        ["--runtime", unit.threads, "--target", str(target), "--out", folder],
        [target, runtime_source()],
        [],
        folder=folder,
        listing=f"{folder}.list.json",
    )
    return folder, declare(stage)[0]


def generated(unit: Unit, dump: bool) -> tuple[str, Any]:
    """The folder of the objects of the model's plan and parameters, and the list of its files."""
    target, folder = unit.target_json(), f"{unit.folder}/compiled"
    given, files = source(unit, dump)
    stage = Stage(
        "compile",
        unit.subject,
        ["--source", given, "--name", unit.name, "--target", str(target), "--out", folder],
        [target, runtime_source(), *files],
        [],
        folder=folder,
        listing=f"{folder}.list.json",
    )
    return folder, declare(stage)[0]


def runtime_source() -> Any:
    """runtime_c's content, as a value and not as files: once installed it lies outside of the project."""
    parts = [
        digest.of_folder(data_dir("runtime_c") / part) for part in ("include", "core", "platform", "cuda")
    ]
    return session().env.Value(" ".join(["runtime_c", *parts]))
