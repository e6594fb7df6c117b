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


def check(folder: Path, path: Path) -> None:
    """Remove the list `path` when a listed file is missing or has another size: then the stage runs again."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["files"]
        is_complete = all((folder / entry["name"]).stat().st_size == entry["bytes"] for entry in entries)
    except FileNotFoundError:
        is_complete = False
    except (OSError, ValueError, KeyError, TypeError):
        is_complete = False
    if not is_complete:
        path.unlink(missing_ok=True)
