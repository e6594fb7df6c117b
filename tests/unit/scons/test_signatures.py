"""SCons's file of signatures and Kiln's own, after a power failure: what is damaged is left out."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import SCons.SConsign
import SCons.Warnings
from kiln.errors import KilnError
from kiln.files import write_json
from kiln.scons import edges
from kiln.scons.content import Content
from kiln.scons.signatures import store_signatures
from scons_real import ROOT

_WHOLE = pickle.dumps({"build/host/net": pickle.dumps({})})


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(SCons.SConsign, "File", lambda name: Path("used").write_text(name))
    monkeypatch.setattr(SCons.Warnings, "_enabled", [])
    return tmp_path / "sconsign"


@pytest.mark.parametrize(
    ("content", "stays"),
    [
        (_WHOLE, True),
        (b"", True),
        (_WHOLE[: len(_WHOLE) // 2], False),
        (b"\0" * 512, False),
        (b"text\n", False),
        (pickle.dumps([1, 2]), False),
        (pickle.dumps({"build/host/net": 1}), False),
    ],
)
def test_a_damaged_file_is_removed(
    content: bytes, stays: bool, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = path.with_suffix(".dblite")
    stored.write_bytes(content)
    store_signatures(path)
    warning = "kiln: warning: sconsign.dblite: damaged, as after a power failure: stages run again\n"
    assert (stored.exists(), capsys.readouterr().err) == (stays, "" if stays else warning)
    assert Path("used").read_text() == str(path)


def test_a_file_that_cannot_be_read(path: Path) -> None:
    store_signatures(path)
    path.with_suffix(".dblite").mkdir()
    with pytest.raises(KilnError, match=r"sconsign.dblite: cannot be used: Is a directory; remove it$"):
        store_signatures(path)


@pytest.mark.parametrize("stored", [[], 1, None, {"given": 1}, {"given": ["x"]}])
def test_damaged_signatures_of_content(
    stored: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("given").write_text("one")
    expected = Content(Path("absent.json"), "build").signature("given")
    Path("signatures.json").write_text(json.dumps(stored))
    assert Content(Path("signatures.json"), "build").signature("given") == expected


_FULL = """
import os, sys
import SCons.SConsign, SCons.Script
from kiln.scons import failure
from pathlib import Path

class Database:
    _file_name, _tmp_name = os.path.abspath("sconsign.dblite"), "sconsign.tmp"

def write():
    Path("sconsign.tmp").write_text("half")
    raise OSError(28, "No space left on device")

SCons.SConsign.write, SCons.SConsign.DB_sync_list = write, [Database()]
failure.install()
SCons.SConsign.write()
sys.exit(SCons.Script.Main.exit_status)
"""


def test_a_full_disk_when_signatures_are_saved(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "build_tools")}
    done = subprocess.run(
        [sys.executable, "-c", _FULL],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    cause = "cannot write the signatures of the build: No space left on device"
    assert (done.returncode, done.stderr) == (2, f"kiln: error: sconsign.dblite: {cause}\n")
    assert not list(tmp_path.iterdir())


def test_a_damaged_choice_of_buckets_is_made_again(tmp_path: Path) -> None:
    path, choice = tmp_path / "chosen.json", {"key": "k", "buckets": {"rows": [{"pad": 4}]}}
    write_json(path, {**choice, "digest": edges._digest(choice)})
    assert edges._kept(path) == choice
    whole = path.read_text()
    for damaged in ("", whole[:30], "[1]", "{}", whole.replace("4", "5")):
        path.write_text(damaged)
        assert edges._kept(path) == {}
    path.unlink()
    assert edges._kept(path) == {}
