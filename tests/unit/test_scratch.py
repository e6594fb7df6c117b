"""Folders for temporary files: removed at the end, and after a kill by the next process."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from kiln import scratch
from kiln.errors import KilnError
from kiln.scratch import scratch_folder
from scons_real import ROOT

HOLDER = """
import sys
from kiln.scratch import scratch_folder
with scratch_folder("holder") as folder:
    (folder / "file").write_text("x")
    print(folder, flush=True)
    sys.stdin.read()
"""


def holder(temporary: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that uses a scratch folder, and the folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "build_tools"), "TMPDIR": str(temporary)}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_what_a_killed_process_leaves_the_next_one_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (killed, left), (running, used) = holder(tmp_path), holder(tmp_path)
    killed.kill()
    killed.communicate()
    other = tmp_path / "kiln-my-own-folder"
    other.mkdir()
    (tmp_path / "kiln-linked.scratch").symlink_to(other)
    assert left.is_dir() and used.is_dir()
    with scratch_folder("new") as new:
        assert new.is_dir() and not any(new.iterdir())
        assert not left.exists() and (used / "file").is_file() and other.is_dir()
    assert not new.exists()
    running.communicate()
    assert running.returncode == 0 and not used.exists()


def test_a_folder_that_is_removed_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may take a folder for abandoned that this one has made and not locked yet."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made: list[str] = []
    make = tempfile.mkdtemp

    def make_and_lose(**names: str) -> str:
        made.append(make(**names))
        if len(made) == 1:
            Path(made[0]).rmdir()
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", make_and_lose)
    with scratch_folder("new") as folder:
        assert [str(folder)] == made[1:] and folder.is_dir()
    assert not any(tmp_path.iterdir())


def test_a_full_disk_is_the_reason_of_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime writes half a model without an error, and fails when it reads it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    usage = shutil.disk_usage(tmp_path)
    for free, kind, message in (
        (usage.free, ValueError, "no domain"),
        (4096, KilnError, r"No space left on device\? .*kiln-new-.* has 4096 bytes left"),
    ):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: usage._replace(free=free))
        with pytest.raises(kind, match=message), scratch_folder("new"):
            raise ValueError("no domain")
    with pytest.raises(KilnError, match=r"^net\.onnx: damaged$"), scratch_folder("new"):
        raise KilnError("net.onnx: damaged")
    assert not any(tmp_path.iterdir())


STARTER = """
import os, signal, sys
from pathlib import Path
from kiln.command_line import own_process
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
own_process._COMMAND = "import time; print(file=sys.stderr, flush=True); time.sleep(600)"
own_process.subprocess.PIPE = None
own_process.run_kiln([], Path(), os.environ)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGKILL])
def test_a_build_of_a_command_ends_with_it(by: signal.Signals) -> None:
    """The pipe reaches its end when neither process has it open any more."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "build_tools")}
    command = [sys.executable, "-c", STARTER]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        process.stderr.readline()
        process.send_signal(by)
        try:
            process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == -by


def test_folders_for_temporary_files_are_scratch_folders() -> None:
    """Folders of any other kind stay where a killed process has left them."""
    others = {"worker.py of triton"}  # which runs without Kiln
    makers = re.compile(r"mkdtemp\((?!.*\bdir=)|TemporaryDirectory\((?!.*\bdir=)")
    found = set()
    for path in (ROOT / "build_tools" / "kiln").rglob("*.py"):
        if makers.search(path.read_text(encoding="utf-8")):
            found.add(path.name + (" of triton" if path.parent.name == "triton" else ""))
    assert found == others


def test_a_folder_for_a_socket_has_a_short_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build keeps its folders in one of its own, and TMPDIR may be long: ssh could make no socket there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    long, short = tmp_path / ("long" * 20), tmp_path / "short"
    long.mkdir()
    short.mkdir()
    monkeypatch.setattr(scratch, "_SHORT", str(short))
    most = len(os.fsencode(short)) + 40
    with scratch_folder("socket", most) as folder:
        assert folder.parent == tmp_path
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with scratch_folder("socket", most) as folder:
        assert folder.parent == short and len(os.fsencode(folder)) <= most
    with scratch_folder("socket") as folder:
        assert folder.parent == long
    assert not [*long.iterdir(), *short.iterdir()]
