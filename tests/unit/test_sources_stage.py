"""The fetch program: a file or nothing, and one line for what went wrong."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import IO

import pytest
from kiln.__main__ import main
from kiln.files import write_json


def run(tmp_path: Path, path: Path, **more: str) -> int:
    write_json(tmp_path / "fetch.json", {"source": {"kind": "file", "path": str(path), **more}})
    return main(
        ["fetch", "--config", str(tmp_path / "fetch.json"), "--out", str(tmp_path / "out" / "net.onnx")]
    )


def test_copies(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"abc")
    assert run(tmp_path, tmp_path / "net.onnx") == 0
    assert (tmp_path / "out" / "net.onnx").read_bytes() == b"abc"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["net.onnx"]


def test_mismatch_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.onnx").write_bytes(b"abc")
    assert run(tmp_path, tmp_path / "net.onnx", sha256="0" * 64) == 2
    assert not (tmp_path / "out").exists()
    error = capsys.readouterr().err
    assert error.startswith("kiln: error: ")
    assert error.count("\n") == 1


def test_unwritable_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.onnx").write_bytes(b"abc")
    (tmp_path / "out").write_text("in the way")
    assert run(tmp_path, tmp_path / "net.onnx") == 2
    assert "cannot write" in capsys.readouterr().err


def test_full_disk(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """/dev/full refuses bytes as a full disk does; the half-written file must not stay."""
    (tmp_path / "net.onnx").write_bytes(b"abc")

    def write_to_full_disk(source: IO[bytes], target: IO[bytes], length: int) -> None:
        target.write(source.read(1))
        with Path("/dev/full").open("wb", buffering=0) as full:
            full.write(source.read())

    monkeypatch.setattr(shutil, "copyfileobj", write_to_full_disk)
    assert run(tmp_path, tmp_path / "net.onnx") == 2
    assert "No space left on device" in capsys.readouterr().err
    assert list((tmp_path / "out").iterdir()) == []
