"""compile: C to objects with the target's C compiler; the runtime once for all models of a target."""

from __future__ import annotations

from typing import Any

from kiln.paths import data_dir
from kiln.scons import digest
from kiln.scons.builders.source import source
from kiln.scons.model_build import Unit
from kiln.scons.session import session
from kiln.scons.stage import Stage, declare


def runtime(unit: Unit) -> tuple[str, Any]:
    """Declare the runtime's objects; returns their folder and the node of the list of its files."""
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
    """Declare the objects of the model's plan and parameters.

    Returns their folder and the list of its files.
    """
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
    """The digest of runtime_c as an SCons value.

    Its files are outside of the project once Kiln is installed.
    """
    parts = [
        digest.of_folder(data_dir("runtime_c") / part) for part in ("include", "core", "platform", "cuda")
    ]
    return session().env.Value(" ".join(["runtime_c", *parts]))
