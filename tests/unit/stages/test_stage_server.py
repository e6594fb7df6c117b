"""Stages as forks of one process: their environment, and the death of one or all of them."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import waiting
from kiln.errors import KilnError
from kiln.scons.server import StageServer
from kiln.scons.server_process import NewServer, stage_environment
from kiln.scratch import remove_abandoned
from kiln.stage import POSITIONAL
from kiln.stages import STAGES

from unit.scons_project import StandInProject

RESNET = ("target=aarch64", "model=resnet")

pytestmark = pytest.mark.slow
_THREADS = """
import importlib, os
from kiln.stages import STAGES
for module in [stage.spec.module for stage in STAGES.values()]:
    importlib.import_module(module)
if os.fork() == 0:  # before a fork OpenBLAS ends its threads, and starts them again when they are needed
    os._exit(0)
os.wait()
print(*[open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")])
"""


def words(name: str, out: Path | str = "out") -> list[str]:
    """A command line of a stage: `--out`, and values without meaning for all other flags that it needs."""
    found = [one for one in STAGES[name].fields() if one.required and one.name != "out"]
    flags = [word for one in found if one.flag != POSITIONAL for word in (one.flag, "unused")]
    return [*flags, "--out", str(out), *("unused" for one in found if one.flag == POSITIONAL)]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StageServer]:
    """A server whose stages are stand-ins."""
    project = StandInProject(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("kiln.scons.server_process._PACKAGES", str(tmp_path / "build_tools"))
    for name, value in project.environment().items():
        monkeypatch.setenv(name, value)
    stage_server = StageServer()
    yield stage_server
    with waiting.limit("the end of the stage server, whose control socket is closed"):
        stage_server.close()


@pytest.mark.heavy
def test_the_modules_of_stages_start_no_thread_when_they_are_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _THREADS], env=stage_environment(), capture_output=True, text=True, check=True
    )
    assert len(done.stdout.split()) == 1, done.stdout


def test_a_stage_has_the_environment_and_the_folder_of_its_request(
    server: StageServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        folder = tmp_path / f"folder{number}"
        folder.mkdir()
        monkeypatch.chdir(folder)
        monkeypatch.setenv("FAKE_LOG", f"log{number}")
        assert server.run("link", words("link", "result")) == (0, "", "")
        assert (folder / f"log{number}").read_text() == "link result\n"
        monkeypatch.delenv("FAKE_LOG")
    assert server.run("link", words("link", "again")) == (0, "", "")
    assert sorted(path.name for path in folder.iterdir()) == ["again", "log2", "result"]


def test_modules_are_imported_before_the_first_stage(server: StageServer, tmp_path: Path) -> None:
    """Also of a stage that there is not, and of one whose module cannot be imported: stages then say so."""
    (tmp_path / "build_tools/kiln/emit/link.py").write_text("1 / 0")
    server.prepare(["plan", "nostage", "link"])
    assert server.run("plan", words("plan", "result")) == (0, "", "")
    status, _, printed = server.run("link", words("link"))
    assert status != 0 and "division by zero" in printed
    assert server.run("plan", words("plan", "again")) == (0, "", "")


def test_stages_that_need_no_tvm_run_while_other_modules_are_imported(
    server: StageServer, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    module = tmp_path / "build_tools/kiln/emit/link.py"
    module.write_text(
        f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n{module.read_text()}"
    )
    server.prepare(["link"])
    assert server.run("fetch", words("fetch", "early")) == (0, "", "")  # it would wait for ever
    go.touch()
    assert server.run("link", words("link", "result")) == (0, "", "")
    assert server.run("fetch", words("fetch", "again")) == (0, "", "")


def test_a_server_that_ran_no_stage_is_not_waited_for(server: StageServer, tmp_path: Path) -> None:
    """A build does not wait for its server if it ends, with an error in a YAML file, before any stage ran."""
    (tmp_path / "build_tools/kiln/emit/link.py").write_text("import time; time.sleep(1000)")
    server.prepare(["link"])
    server.close()


_FORKS = """
import os, signal, sys
from kiln.scons.server import StageServer
from kiln.scons.server_process import NewServer, fork_servers
forked, link = fork_servers(), sys.argv[1:]
server = StageServer()
print(forked is not None, server.run("link", [*link, "one"]))
process = server._process
print(process is (forked and forked.main))
if forked is not None:
    server.prepare(["plan"])  # no effect: a stage has run
    os.kill(process.pid, signal.SIGKILL)
    print(process.end(), server.run("link", [*link, "two"]), isinstance(server._process, NewServer))
    print(*sorted(os.listdir()))
"""


@pytest.mark.parametrize("seed", ["0", "random"])
def test_a_server_that_is_a_fork_and_the_one_after_it(seed: str, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = StandInProject(tmp_path).environment(PYTHONHASHSEED=seed, TMPDIR=str(temporary))
    done = subprocess.run(
        [sys.executable, "-c", _FORKS, *words("link")[:-1]],
        cwd=temporary, env={**environment, "PYTHONPATH": str(tmp_path / "build_tools")},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    ran = "(0, '', '')"
    forked = f"True {ran}\nTrue\n{-signal.SIGKILL} {ran} True\n"
    expected = f"{forked}kiln-stages-" if seed == "0" else f"False {ran}\nFalse\n"
    assert done.stdout.startswith(expected) and done.stderr == "", done
    assert [path for path in temporary.iterdir() if path.name.startswith("kiln-stages-")] == []


def test_a_question_starts_no_server(tmp_path: Path) -> None:
    """`-q` only tells whether anything would be built."""
    project = StandInProject(tmp_path)
    module = tmp_path / "build_tools/kiln/frontend/stage.py"
    module.write_text(f"open({str(tmp_path / 'imported')!r}, 'w').close()\n{module.read_text()}")
    answer = project.scons(*RESNET, "-q")
    assert (answer.returncode, answer.stderr) == (1, "")
    assert not (tmp_path / "imported").exists()
    assert project.scons(*RESNET).returncode == 0
    assert (tmp_path / "imported").exists()


_TAKES_TOKENS = """
import os
from kiln import stand_in
from kiln.tokens import Tokens

def run(stage):
    tokens, count = Tokens.inherited(), 0
    while tokens.take_for_fork():
        count += 1
    for _ in range(count):
        tokens.give_back()
    with open({path!r}, "w") as stream:
        stream.write(f"{{count}} more, {{os.environ['KILN_JOBS']}} in all")
    stand_in.run(stage)
"""


@pytest.mark.heavy
def test_forks_of_a_stage_share_the_processes_of_the_build(tmp_path: Path) -> None:
    """The stage `report` runs alone here, so that all tokens but its own are free."""
    project, log = StandInProject(tmp_path), tmp_path / "said"
    (tmp_path / "build_tools/kiln/report/html.py").write_text(_TAKES_TOKENS.format(path=str(log)))
    assert project.scons(*RESNET, "-j1").returncode == 0
    assert log.read_text() == "0 more, 1 in all"
    (tmp_path / "build/.stages/aarch64/resnet/report.html").unlink()
    assert project.scons(*RESNET, "-j3").returncode == 0
    assert log.read_text() == "2 more, 3 in all"


def test_output_errors_and_crashes_are_those_of_a_process(
    server: StageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert server.run("device-run", words("device-run")) == (0, "device-run speaks\n", "")
    assert server.run("plan", ["--no-such-flag"])[0] == 2
    monkeypatch.setenv("FAKE_FAIL", "plan")
    assert server.run("plan", words("plan")) == (2, "", "kiln: error: plan cannot do this\n")
    monkeypatch.setenv("FAKE_CRASH", "lower")
    status, _, stderr = server.run("lower", words("lower"))
    assert status == 2 and "RuntimeError: out of ideas" in stderr.splitlines()[-1]
    monkeypatch.setenv("FAKE_SIGNAL", "size")
    assert server.run("size", words("size")) == (-signal.SIGSEGV, "", "")
    assert server.run("report", words("report")) == (0, "", "")


@pytest.mark.parametrize("status", [0, -signal.SIGSEGV])
def test_programs_that_a_stage_leaves_behind_end_with_it(
    server: StageServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """They have the stage's output open, at whose end the build would wait for them."""
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "program"))
    monkeypatch.setenv("FAKE_LEAVES", "size")
    monkeypatch.setenv("FAKE_SIGNAL", "size" if status else "")
    with waiting.limit("the end of a stage's output that a program holds open"):
        assert server.run("size", words("size"))[0] == status
    # A killed process closes its output before it has ended.
    _await_end([int((tmp_path / "program").read_text())])


def test_a_stage_is_killed_for_who_waits_and_nobody_else(
    server: StageServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = server.start("link", words("link", tmp_path / "whole"), stage_environment(FAKE_SECONDS="1"))
    killed = server.start("link", words("link", tmp_path / "never"), stage_environment(FAKE_SECONDS="1000"))
    assert killed.wait(0.01) is None
    with waiting.limit("the status of a stage that is killed"):
        killed.kill()
    assert other.wait(waiting.SECONDS) == 0
    assert (tmp_path / "whole").is_dir() and not (tmp_path / "never").exists()


def test_a_server_that_dies_takes_its_stages_along_and_another_one_follows(
    server: StageServer, tmp_path: Path
) -> None:
    running = server.start("link", words("link", tmp_path / "never"), stage_environment(FAKE_SECONDS="1000"))
    process = server._process
    assert isinstance(process, NewServer)
    forks = _children(process._popen, "the stage server", process.last_line)
    process._popen.send_signal(signal.SIGKILL)
    assert running.wait(waiting.SECONDS) == -signal.SIGKILL
    with waiting.limit("the end of a killed stage's output"):
        assert running.stdout.read() == ""
    _await_end(forks)
    assert server.run("link", words("link", tmp_path / "whole"))[0] == 0


def _children(
    process: subprocess.Popen[Any], name: str, last_line: Callable[[], str] = lambda: "see stderr"
) -> list[int]:
    """Processes that the threads of `process`, which is called `name`, have started: at least one.

    `last_line`: what the process wrote last, for the message if it ends before.
    """

    def found() -> list[int]:
        lists: list[str] = []
        for path in Path(f"/proc/{process.pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # a thread that has just ended
                lists.append(path.read_text())
        children = [int(child) for text in lists for child in text.split()]
        if not children and process.poll() is not None:
            pytest.fail(f"{name} ended with status {process.returncode} before it started any: {last_line()}")
        return children

    return waiting.until(found, f"a process that {name} starts")


def _runs(pid: int) -> bool:
    """Whether the process exists and is not one that has ended and nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _await_end(pids: list[int]) -> None:
    waiting.until(lambda: not any(map(_runs, pids)), f"the end of the processes {pids}")


def test_a_server_that_cannot_start_says_why(server: StageServer, tmp_path: Path) -> None:
    (tmp_path / "build_tools/kiln/errors.py").write_text("raise RuntimeError('out of order')")
    with pytest.raises(KilnError, match="ended with status 1: RuntimeError: out of order"):
        server.run("link", words("link"))


def test_a_long_command_line_arrives_whole(server: StageServer, tmp_path: Path) -> None:
    objects = [f"{number:0100}" for number in range(10000)]
    assert server.run("link", [*words("link", tmp_path / "whole"), *objects])[0] == 0


def test_a_build_that_is_killed_leaves_no_process_and_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = StandInProject(tmp_path)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = subprocess.Popen(
        project.command(*RESNET, "-j2"), cwd=tmp_path, stdout=subprocess.PIPE, text=True,
        env=project.environment(FAKE_SECONDS="1000", TMPDIR=str(temporary)),
    )  # fmt: skip
    assert process.stdout is not None
    with waiting.limit("the first line of a build"):
        assert process.stdout.readline().startswith("kiln: ")
    servers = _children(process, "the build")
    [of_stages] = temporary.iterdir()
    process.kill()
    process.wait(waiting.SECONDS)
    _await_end(servers)
    assert list(temporary.iterdir()) == []
    (of_stages / "left").mkdir(parents=True)  # as after kill -9 of every process
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    remove_abandoned()  # as any command does
    assert list(temporary.iterdir()) == []
