"""Paths of Kiln's data, cache and user settings."""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def data_dir(name: str) -> Path:
    """The folder `name` (targets, models or runtime_c) of the source tree or of the installed package."""
    installed = _PACKAGE / "data" / name
    return installed if installed.is_dir() else _PACKAGE.parents[1] / name


def data_file(name: str) -> Path:
    """The file `name` (SConstruct) of the source tree or of the installed package."""
    installed = _PACKAGE / "data" / name
    return installed if installed.is_file() else _PACKAGE.parents[1] / name


def command_name() -> str:
    """How a user calls Kiln: `kiln` where the package is installed, `./kiln` in the source tree."""
    return "kiln" if (_PACKAGE / "data").is_dir() else "./kiln"


def cache_dir() -> Path:
    """Folder of downloads that builds share: $KILN_CACHE, else kiln in the user's cache folder.

    A URL in KILN_CACHE is a cache of stage outputs alone, and `none` is no cache of them.
    """
    explicit = os.environ.get("KILN_CACHE")
    if explicit and explicit != "none" and "://" not in explicit:
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kiln"


def user_dir() -> Path:
    """Folder for a user's settings that belong to no project, such as devices/: `~/.config/kiln`."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "kiln"


def operator_files(*ends: str) -> list[Path]:
    """Files in `operators/` of the working folder, where users declare operators of their own, sorted."""
    return sorted(path for end in ends for path in Path.cwd().joinpath("operators").glob(f"*{end}"))
