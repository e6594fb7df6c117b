"""Files that the user names for results: refused before any work if they cannot be written."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from kiln.arrays import Array
from kiln.errors import KilnError
from kiln.files import atomic_write


def writable(option: str, path: Path) -> None:
    """Raise KilnError if no file `path` can be written; `option` is the name of the option that gives it.

    Folders that do not exist are allowed: writing creates them.
    """
    if path.is_dir():
        raise KilnError(f"--{option} {path}: a folder, but the path of a file is expected")
    _check_nearest(option, path, path.absolute().parent)


def writable_folder(option: str, path: Path) -> None:
    """Raise KilnError if no files can be written below the folder `path`, which need not exist."""
    _check_nearest(option, path, path.absolute())


def _check_nearest(option: str, path: Path, place: Path) -> None:
    """Raise KilnError if the nearest of `place` and its parents that exists is no folder, or is protected."""
    folder = next(folder for folder in (place, *place.parents) if os.path.lexists(folder))
    if not folder.is_dir():
        raise KilnError(f"--{option} {path}: {folder} is not a folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise KilnError(f"--{option} {path}: the folder {folder} cannot be written")


def save_npz(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays to a .npz file, completely or not at all. Raises KilnError if it cannot be written."""
    content = io.BytesIO()
    np.savez(content, **arrays)  # type: ignore[arg-type]
    atomic_write(path, content.getvalue())
