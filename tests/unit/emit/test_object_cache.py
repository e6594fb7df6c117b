"""Compiled kernels in the folder that builds share: only whole files count."""

from __future__ import annotations

from pathlib import Path

import pytest
from kiln.emit.object_cache import load, loops_of, store

LOOPS = {"vectorised": 2, "scalar": []}


@pytest.mark.parametrize("damage", ["empty", "cut", "zeros", "missing", "none"])
@pytest.mark.parametrize("which", ["object", "about"])
def test_damaged_files_count_as_missing(tmp_path: Path, which: str, damage: str) -> None:
    """A crash of the machine may cut the end of a file, or all of it; such a file is compiled again."""
    path, out = tmp_path / "kernels" / "kernel.0123.o", tmp_path / "copy.o"
    assert load(path, out) is None and not out.exists()
    store(path, b"an object", LOOPS)
    assert load(path, out) == loops_of(path) == LOOPS and out.read_bytes() == b"an object"
    out.unlink()
    (other,) = set(path.parent.iterdir()) - {path}
    file = path if which == "object" else other
    content = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        damaged = {"empty": b"", "cut": content[:-3], "zeros": bytes(len(content)), "none": content}[damage]
        file.write_bytes(damaged)
    assert load(path, out) == (LOOPS if damage == "none" else None)
    assert out.exists() == (damage == "none")
    store(path, b"an object", LOOPS)
    assert load(path, out) == LOOPS and out.read_bytes() == b"an object"
