"""Inputs of stages that no flag names: Kiln's runtime, and backends and operators of the user."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kiln.paths import data_dir, operator_files
from kiln.scons import digest
from kiln.scons.session import session


def own_sources(backends: Sequence[str]) -> list[Any]:
    """The source files of the user's own backends among `backends`, as SCons nodes."""
    from kiln.byoc.registry import user_file  # only where a library is used

    return [session().file(str(path)) for path in map(user_file, backends) if path is not None]


def own_operators() -> list[Any]:
    """The files of the user's own operators, as SCons nodes: inputs of every stage that reads a model."""
    return [session().file(str(path)) for path in operator_files(".py", ".c")]


def runtime_source() -> Any:
    """The digest of runtime_c as an SCons value."""
    folders = [data_dir("runtime_c") / folder for folder in ("include", "core", "platform", "cuda")]
    return session().env.Value(" ".join(["runtime_c", *map(digest.of_folder, folders)]))
