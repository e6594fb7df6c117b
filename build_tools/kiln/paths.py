"""Paths of Kiln's data, cache and user settings."""

from __future__ import annotations

import functools
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

    A URL in KILN_CACHE is a cache of stage outputs alone, and `none` turns that cache off. Users without a
    folder that they can write to, as in many containers, have build/.cache of the working folder.
    """
    explicit = os.environ.get("KILN_CACHE")
    if explicit and explicit != "none" and url_scheme(explicit) is None:
        return Path(explicit)
    usual = _of_user("XDG_CACHE_HOME", ".cache")
    return usual if usual is not None and _writable(str(usual)) else Path.cwd() / "build" / ".cache"


def url_scheme(text: str) -> str | None:
    """The scheme of a URL in lower case: what is before a colon that precedes every slash; None for a path.

    A malformed URL such as http:host has one too, so that it is not taken for a folder of that name.
    """
    start, colon, _ = text.partition("/")[0].partition(":")
    return start.lower() if colon else None


def user_dir() -> Path:
    """Folder for a user's settings that belong to no project, such as devices/: `~/.config/kiln`."""
    return _of_user("XDG_CONFIG_HOME", ".config") or Path.cwd() / "build" / ".config"


def _of_user(variable: str, name: str) -> Path | None:
    """The folder kiln in a user's folder: that of an environment variable, else `name` in the home folder.

    None for a user without a home: HOME is not set and the system does not know the user's number.
    """
    try:
        return Path(os.environ.get(variable) or Path.home() / name) / "kiln"
    except RuntimeError:
        return None


@functools.cache
def _writable(folder: str) -> bool:
    """Whether files can be made in a folder, which is made if it is missing."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def operator_files(*ends: str) -> list[Path]:
    """Files in `operators/` of the working folder, where users declare operators of their own, sorted."""
    return sorted(path for end in ends for path in Path.cwd().joinpath("operators").glob(f"*{end}"))


def listed_names(text: str) -> list[str]:
    """The names and paths in a list with commas. A file whose path has commas is one path."""
    is_file = os.path.isfile(text)  # noqa: PTH113  # Path.is_file raises an error for a list that is long
    return [name.strip() for name in ([text] if is_file else text.split(",")) if name.strip()]
