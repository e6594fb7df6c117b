"""Makes one SCons node of a folder whose file names only its stage knows: a list of names, sizes, hashes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from kiln.files import write_json


def write(folder: Path, path: Path) -> None:
    """Write the list of the files in `folder` to `path`."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    write_json(path, {"files": [_entry(folder, file) for file in files]})


def _entry(folder: Path, file: Path) -> dict[str, Any]:
    content = file.read_bytes()
    return {
        "name": file.relative_to(folder).as_posix(),
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def is_complete(folder: Path, path: Path) -> bool:
    """Whether all files in the list `path` are in `folder`, with their sizes; False without a list."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["files"]
        return all((folder / entry["name"]).stat().st_size == entry["bytes"] for entry in entries)
    except (OSError, ValueError, KeyError, TypeError):
        return False
