"""A stage that takes too much memory or time is ended, and the line says which limit it hit."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from kiln import limits, unforeseen
from kiln.config.model import StageLimits
from kiln.stages import STAGES
from pydantic import ValidationError

from unit.scons_project import StandInProject

RESNET = ("target=aarch64", "model=resnet")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> StandInProject:
    stand_in = StandInProject(tmp_path_factory.mktemp("limits"))
    # Stages before `lower` are done by now, however slow the machine is.
    assert stand_in.scons(*RESNET, FAKE_FAIL="lower").returncode == 2
    with (stand_in.folder / "models/resnet.yaml").open("a") as stream:
        stream.write("limits: {seconds: 5, memory: 256MiB}\n")
    return stand_in


def failed(project: StandInProject, environment: Mapping[str, str]) -> str:
    done = project.scons(*RESNET, **environment)
    assert done.returncode == 2
    assert not list((project.folder / "build").glob("aarch64/resnet/*"))
    return done.stderr


@pytest.mark.heavy
def test_a_stage_that_takes_too_much_memory(project: StandInProject) -> None:
    assert failed(project, {"FAKE_EATS": "lower"}) == (
        "kiln: error: aarch64/resnet: lower: needs more than 256MiB of memory; "
        "allow more with the model's key 'limits.memory'\n"
    )


def test_a_stage_that_never_ends(project: StandInProject) -> None:
    """A stage beyond its limit of time ends, and so does the program that it waits for."""
    message = failed(project, {"FAKE_STUCK": "lower", "FAKE_LOG": str(project.folder / "pid")})
    assert message == (
        "kiln: error: aarch64/resnet: lower: stopped, as it was not done after 5 seconds; "
        "allow more with the model's key 'limits.seconds'\n"
    )
    program = Path("/proc", (project.folder / "pid").read_text(), "stat")
    for _ in range(100):
        if not runs(program):
            break
        time.sleep(0.1)
    assert not runs(program)


def runs(process: Path) -> bool:
    try:
        return process.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_limit_is_of_this_process_alone() -> None:
    program = (
        "from kiln import limits\nlimits.apply()\n"
        "try:\n    bytearray(1 << 30)\nexcept MemoryError:\n    print('refused')\n"
    )
    environment = {**os.environ, limits.MEMORY: str(256 << 20)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("refused\n", "")


@pytest.mark.parametrize(
    "line",
    [
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 1.00 GiB for an array",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "kiln: error: m: operator 'add' cannot be compiled: std::bad_alloc",
        "LLVM ERROR: out of memory",
        "kiln: error: lower of m: out of memory",
        "ImportError: libtvm_runtime.so: failed to map segment from shared object",
    ],
)
def test_what_says_that_memory_ran_out(line: str) -> None:
    assert limits.ran_out_of_memory(["Traceback (most recent call last):", line])
    assert not limits.ran_out_of_memory(["kiln: error: m: no such file"])


def test_what_measures_has_no_limits() -> None:
    limited = {name for name, stage in STAGES.items() if stage.spec.limited}
    assert {"lower", "emit-objects"} <= limited
    assert not {"tune", "device-test", "device-bench", "byoc-choose"} & limited


def test_sizes_as_they_are_written() -> None:
    assert [limits.shown(n) for n in (16 << 30, 300 << 20, 5 << 10, 1000)] == [
        "16GiB", "300MiB", "5KiB", "1000",
    ]  # fmt: skip


@pytest.mark.parametrize("values", [{"seconds": 0}, {"memory": "1MiB"}, {"memory": "much"}, {"hours": 1}])
def test_limits_that_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        StageLimits.model_validate(values)


def test_a_limit_of_the_shell_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Libraries that are half loaded fail anyhow, with errors that tell nothing."""
    found = {resource.RLIMIT_AS: 300000 << 10, resource.RLIMIT_DATA: resource.RLIM_INFINITY}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (found[kind], resource.RLIM_INFINITY))
    hint = "; this shell allows 300000KiB of memory (ulimit -v), Kiln needs 1GiB or more"
    assert (limits.shell_limit(), limits.shell_hint()) == (300000 << 10, hint)
    line = unforeseen.error_line("kiln quantise", None, AttributeError("no RegisterOpAttr"))
    assert line == f"kiln: error: kiln quantise: AttributeError: no RegisterOpAttr{hint}"
    found[resource.RLIMIT_AS] = resource.RLIM_INFINITY
    assert (limits.shell_limit(), limits.shell_hint()) == (None, "")
    found[resource.RLIMIT_DATA] = 1 << 20
    assert limits.shell_hint() != ""
    monkeypatch.setenv(limits.MEMORY, "1048576")  # a stage's own limit
    assert limits.shell_hint() == ""


def test_the_end_of_a_process_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a shell's limit of processor time, whose end is a signal that says nothing of it."""
    limit = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert [limits.end_text(status) for status in (1, -9)] == ["exit status 1", "killed by SIGKILL"]
    limit = 7
    shell = ": this shell allows 7 s of processor time (ulimit -t)"
    assert limits.end_text(-signal.SIGKILL) == f"killed by SIGKILL{shell}"
    assert limits.end_text(-signal.SIGXCPU) == f"killed by SIGXCPU{shell}"
    assert limits.end_text(-signal.SIGSEGV) == "killed by SIGSEGV"
