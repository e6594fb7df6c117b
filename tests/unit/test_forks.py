"""Work in forks: every item once, errors of one line, signals as if the work were done here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kiln import forks, limits
from scons_real import ROOT

PROGRAM = """
import os, signal, sys
from pathlib import Path
from kiln import forks
from kiln.errors import KilnError

folder, kind = Path(sys.argv[1]), sys.argv[2]

def work(item):
    if item == 5 and kind == "kiln":
        raise KilnError("item 5 is wrong")
    if item == 5 and kind == "other":
        raise ZeroDivisionError("1 / 0")
    if item == 5 and kind == "signal":
        os.kill(os.getpid(), signal.SIGSEGV)
    (folder / f"{item}").write_text(str(os.getpid()))

try:
    forks.each(work, list(range(9)))
except KilnError as error:
    print(error)
"""


def run(folder: Path, kind: str = "", jobs: str = "3") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "build_tools"), limits.JOBS: jobs}
    command = [sys.executable, "-c", PROGRAM, str(folder), kind]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("jobs", ["1", "3"])
def test_every_item_once(tmp_path: Path, jobs: str) -> None:
    done = run(tmp_path, jobs=jobs)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == [str(item) for item in range(9)]
    processes = {path.read_text() for path in tmp_path.iterdir()}
    assert len(processes) == 1 if jobs == "1" else 1 <= len(processes) <= 3


@pytest.mark.parametrize(
    ("kind", "line"), [("kiln", "item 5 is wrong"), ("other", "ZeroDivisionError: 1 / 0")]
)
def test_an_error_in_a_fork(tmp_path: Path, kind: str, line: str) -> None:
    done = run(tmp_path, kind)
    assert (done.returncode, done.stdout) == (0, f"{line}\n")
    assert not (tmp_path / "5").exists()


def test_a_signal_in_a_fork(tmp_path: Path) -> None:
    assert run(tmp_path, "signal").returncode == run(tmp_path, "signal", "1").returncode == -11


def test_the_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, expected in (("4", 4), ("0", 1), ("", None)):
        monkeypatch.setenv(limits.JOBS, given)
        assert forks.jobs() == expected or (expected is None and forks.jobs() >= 1)
