"""Signatures of files: how often a file is read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import SCons.Util
from kiln.scons.content import Content


def test_an_output_is_read_once_in_a_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that was written just now is read again by each stage, unless a stage renamed it into place."""
    monkeypatch.chdir(tmp_path)
    read: list[str] = []
    hashed = SCons.Util.hash_file_signature
    monkeypatch.setattr(SCons.Util, "hash_file_signature", lambda path: read.append(path) or hashed(path))
    Path("build").mkdir()
    for name in ("build/made", "given"):
        Path(name).write_text("one")
    content = Content(Path("signatures.json"), "build")
    first = [content.signature("build/made") for _ in range(3)]
    assert len(set(first)) == 1 and read == ["build/made"]
    assert content.signature("given") == content.signature("given") == first[0]
    assert read == ["build/made", "given", "given"]
    Path("build/new").write_text("two")
    os.replace("build/new", "build/made")
    assert content.signature("build/made") != first[0] and read[3:] == ["build/made"]
    assert content.signature("build/missing") is None
