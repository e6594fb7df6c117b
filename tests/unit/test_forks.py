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
    if item == 5 and kind == "silent":
        os._exit(1)
    if item == 5 and kind == "signal":
        os.kill(os.getpid(), signal.SIGSEGV)
    (folder / f"{item}").write_text(str(os.getpid()))

try:
    forks.each(work, list(range(9)))
except KilnError as error:
    print(error)
"""


def run(folder: Path, kind: str = "", jobs: str = "3", first: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "build_tools"), limits.JOBS: jobs}
    command = [sys.executable, "-c", first + PROGRAM, str(folder), kind]
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


@pytest.mark.parametrize("free", [False, True], ids=["full", "free"])
def test_a_fork_that_ends_without_an_error(tmp_path: Path, free: bool) -> None:
    """As LLVM ends it where it cannot write an object."""
    usage = "from shutil import _ntuple_diskusage as usage; import shutil; shutil.disk_usage = "
    disk = f"{usage}lambda _: usage(1 << 30, 1 << 30, {1 << 30 if free else 512})\n"
    full = f": No space left on device? {Path.cwd()} has 512 bytes left"
    assert run(tmp_path, "silent", first=disk).stdout == f"exit status 1{'' if free else full}\n"


def test_a_signal_in_a_fork(tmp_path: Path) -> None:
    assert run(tmp_path, "signal").returncode == run(tmp_path, "signal", "1").returncode == -11


def test_the_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number after -j, else cores and memory: 512 MiB for each process."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    for given, gib, expected in (("4", 1, 4), ("0", 64, 1), ("", 64, 64), ("", 4, 8), ("", 0.25, 1)):
        monkeypatch.setenv(limits.JOBS, given)
        monkeypatch.setattr(limits, "memory", lambda gib=gib: int(gib * (1 << 30)))
        assert forks.jobs() == expected


SHARED = """
import os, sys, threading, time
from pathlib import Path
import waiting
from kiln import forks
from kiln.tokens import VARIABLE, Tokens

def at_once(item):
    mark = running / f"{os.getpid()}"
    mark.touch()
    with open(folder / "counts", "a") as stream:
        stream.write(f"{len(list(running.iterdir()))}\\n")
    time.sleep(0.01)
    mark.unlink()

def in_turn(item):
    (folder / f"item{item}").touch()
    exists("go" if item < 2 else "end")

def exists(*names):
    waiting.until(lambda: all((folder / name).exists() for name in names), f"the files {names}", 60)

folder, tokens = Path(sys.argv[2]), Tokens.create(int(sys.argv[3]))
running = folder / "running"
running.mkdir()
os.environ[VARIABLE] = ",".join(map(str, tokens.descriptors))
stages = []
for _ in range(int(sys.argv[4])):
    tokens.take()
    stages.append(os.fork())
    if not stages[-1]:
        forks.each(globals()[sys.argv[1]], list(range(12)))
        os._exit(0)

if sys.argv[1] == "in_turn":
    exists("item0", "item1")  # the stage has two forks
    (folder / "go").touch()
    tokens.take()  # one of them ends, although there is work
    exists("item2")
    tokens.give_back()
    exists("item3")  # there are two again: item 2 has not ended
    (folder / "end").touch()
for stage in stages:
    assert os.waitpid(stage, 0)[1] == 0
    tokens.give_back()
for _ in range(int(sys.argv[3])):
    assert tokens.take_for_fork()
assert not tokens.take_for_fork()
"""


def share(kind: str, folder: Path, tokens: int, stages: int) -> None:
    """Run `SHARED`: so many stages that may have six forks each, in a build with so many tokens."""
    path = os.pathsep.join([str(ROOT / "build_tools"), str(ROOT / "tests")])
    environment = {**os.environ, "PYTHONPATH": path, limits.JOBS: "6"}
    command = [sys.executable, "-c", SHARED, kind, str(folder), str(tokens), str(stages)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_stages_side_by_side_share_the_processes_of_the_build(tmp_path: Path) -> None:
    """Two stages have three forks together, and all tokens are free at the end."""
    share("at_once", tmp_path, tokens=3, stages=2)
    counts = [int(line) for line in (tmp_path / "counts").read_text().split()]
    assert len(counts) == 24 and max(counts) <= 3


def test_a_stage_that_starts_gets_the_token_of_a_fork(tmp_path: Path) -> None:
    """While another stage has work for its forks; when the stage ends, the other one has its fork again."""
    share("in_turn", tmp_path, tokens=2, stages=1)
