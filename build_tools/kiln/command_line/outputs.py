"""Files that the user names for results: refused before any work if they cannot be written."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from kiln.arrays import Array
from kiln.config import Model
from kiln.config.source import FileSource
from kiln.errors import KilnError
from kiln.files import atomic_write


def writable(option: str, path: Path, *inputs: str | Path | None) -> None:
    """Raise KilnError if no file `path` can be written; `option` is the name of the option that gives it.

    `inputs`: what the command reads, paths or other names; the result may not replace them. Folders that do
    not exist are allowed: writing creates them.
    """
    if path.is_dir():
        raise KilnError(f"--{option} {path}: a folder, but the path of a file is expected")
    for file in inputs:
        if file is not None and path.exists() and Path(file).exists() and path.samefile(file):
            raise KilnError(f"--{option} {path}: the command reads this file; name another one to write")
    _check_nearest(option, path, path.absolute().parent)


def onnx_file(out: Path, other_file: str, *inputs: str | Path | None) -> None:
    """Raise KilnError if the option --out names no .onnx file, or one of `inputs`; see `writable`.

    `other_file`: the suffix and content of another file, which gets the same name.
    """
    writable("out", out, *inputs)
    if out.suffix.lower() != ".onnx":
        raise KilnError(f"--out {out}: its name must end in .onnx; a file {other_file} is written next to it")


def files_of(name: str, model: Model) -> tuple[str | Path, ...]:
    """The files of a model that the user keeps: the YAML file, if `name` is one, and the model's own file."""
    return (name, model.source.path) if isinstance(model.source, FileSource) else (name,)


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
