"""Where Kiln's data lies: beside the package in a source tree, inside it once installed."""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def data_dir(name: str) -> Path:
    """The folder `name` (targets, models or runtime_c) of the source tree or of the installed package."""
    installed = _PACKAGE / "data" / name
    return installed if installed.is_dir() else _PACKAGE.parents[1] / name


def cache_dir() -> Path:
    """Where downloads are kept between builds: $KILN_CACHE, else the user's cache folder."""
    explicit = os.environ.get("KILN_CACHE")
    if explicit:
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kiln"


def user_dir() -> Path:
    """Where a user keeps what belongs to no project, such as devices/: `~/.config/kiln`."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "kiln"
