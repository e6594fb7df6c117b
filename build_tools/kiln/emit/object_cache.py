"""Files of compiled kernels, which builds in a folder share: objects, each next to a file with its figures.

Files are written completely or not at all, but not synchronised with the disk: a build writes a hundred of
them. After a crash of the machine they may be damaged, so the second file has the SHA-256 of the object.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from kiln.errors import KilnError
from kiln.files import atomic_write, read_json


def load(path: Path, out: Path) -> dict[str, Any] | None:
    """Copy the object at `path` to `out`; returns how its loops are vectorised.

    None, with nothing written, where a file is missing or damaged. Raises OSError when writing fails.
    """
    try:
        about, content = read_json(_about(path)), path.read_bytes()
    except (KilnError, OSError):
        return None
    if not isinstance(about, dict) or about.get("object") != hashlib.sha256(content).hexdigest():
        return None
    out.write_bytes(content)
    loops: dict[str, Any] = about["loops"]
    return loops


def loops_of(path: Path) -> dict[str, Any]:
    """How the loops of the object at `path` are vectorised, as `store` was given. Raises KilnError."""
    loops: dict[str, Any] = read_json(_about(path))["loops"]
    return loops


def store(path: Path, content: bytes, loops: dict[str, Any]) -> None:
    """Write the object at `path`, and how its loops are vectorised. Raises KilnError when writing fails."""
    about = {"object": hashlib.sha256(content).hexdigest(), "loops": loops}
    atomic_write(_about(path), json.dumps(about), sync=False)
    atomic_write(path, content, sync=False)


def _about(path: Path) -> Path:
    return path.with_suffix(".loops.json")
