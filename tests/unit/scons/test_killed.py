"""kill -9 in the middle of a stage: the next build's result is that of a build from nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import waiting

from unit.scons_project import RESNET, StandInProject

pytestmark = pytest.mark.slow

WORK = "build/.stages/aarch64/resnet"
KILLED_IN = (f"{WORK}/lower", f"{WORK}/plan", f"{WORK}/objects", f"{WORK}/link", "build/aarch64/resnet")


@pytest.mark.parametrize(
    "outputs",
    [(KILLED_IN[1], KILLED_IN[4]), pytest.param(KILLED_IN, marks=pytest.mark.heavy)],
    ids=["two", "all"],
)
def test_a_killed_build_leaves_nothing_that_is_wrongly_trusted(
    built: StandInProject, outputs: Sequence[str]
) -> None:
    """Between two configurations, each build killed: only the stages know which one they were run for."""
    project, clean = built, {}
    for cores in (4, 8):
        configure(project, cores)
        project.build(*RESNET)
        clean[cores] = project.bundle_digest("aarch64/resnet")
    assert clean[4] != clean[8]
    before = 8
    for kill, output in enumerate(outputs):
        configure(project, 12 - before)
        done = project.scons(*RESNET, f"-j{1 + kill % 2}", FAKE_KILL=output)
        assert done.returncode == -signal.SIGKILL, output
        before = 4 + 4 * (kill % 2)  # what was built before the kill, and what was not
        configure(project, before)
        project.build(*RESNET)
        assert project.bundle_digest("aarch64/resnet") == clean[before], output
        assert project.build(*RESNET) == []
        assert [path for path in (project.folder / "build").rglob(".*") if path.name != ".stages"] == []


@pytest.mark.heavy
def test_a_clock_that_was_set_back_does_not_hide_a_kill(built: StandInProject) -> None:
    project, clean = built, {}
    for cores in (4, 8):
        configure(project, cores)
        project.build(*RESNET)
        clean[cores] = project.bundle_digest("aarch64/resnet")
    signatures = project.folder / "build/.stages/sconsign.dblite"
    os.utime(signatures, (time.time() + 9e6,) * 2)
    configure(project, 4)
    assert project.scons(*RESNET, FAKE_KILL="build/aarch64/resnet").returncode == -signal.SIGKILL
    configure(project, 8)
    project.build(*RESNET)
    assert project.bundle_digest("aarch64/resnet") == clean[8]


def configure(project: StandInProject, cores: int) -> None:
    """Change a key of the target that every stage from `lower` on reads."""
    path = project.folder / "targets/aarch64.yaml"
    lines = [
        f"cores: {cores}" if line.startswith("cores:") else line for line in path.read_text().splitlines()
    ]
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.heavy
def test_what_was_finished_outlives_a_kill(built: StandInProject) -> None:
    """After a kill, a build removes only outputs that were incomplete; a finished bundle stays."""
    project = built
    old = project.bundle_digest("aarch64/resnet")
    configure(project, 8)
    killed = project.scons("target=aarch64", "model=resnet,blazeface", FAKE_KILL="build/aarch64/blazeface")
    assert killed.returncode == -signal.SIGKILL
    before = project.bundle_digest("aarch64/resnet")
    assert before != old  # made anew before the kill; SCons knows the signatures of the old one
    for _ in range(2):  # the second time SCons has written what it knows
        project.build("target=aarch64", "model=ppocr_cls")
        assert project.bundle_digest("aarch64/resnet") == before
    assert not list((project.folder / "build/aarch64").glob(".blazeface*"))
    configure(project, 4)
    project.build(*RESNET)
    assert project.bundle_digest("aarch64/resnet") == old


@pytest.mark.heavy
def test_a_build_that_recovers_may_be_killed_as_well(built: StandInProject) -> None:
    project = built
    old = project.bundle_digest("aarch64/resnet")
    configure(project, 8)
    for model in ("resnet,blazeface", "ppocr_cls"):
        last = model.split(",")[-1]
        project.scons("target=aarch64", f"model={model}", FAKE_KILL=f"build/aarch64/{last}")
    configure(project, 4)
    project.build(*RESNET)
    assert project.bundle_digest("aarch64/resnet") == old
    assert project.build(*RESNET) == []


@pytest.mark.heavy
def test_the_next_build_waits_for_the_last_process_of_a_killed_one(built: StandInProject) -> None:
    project = built
    before = project.bundle_digest("aarch64/resnet")
    configure(project, 8)
    process = subprocess.Popen(
        project.command(*RESNET), cwd=project.folder, env=project.environment(FAKE_SECONDS="1.5"),
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    with waiting.limit("the line of the stage 'lower'"):
        while "lower" not in (line := process.stdout.readline()):
            assert line, "the build ended before the stage 'lower'"
    process.kill()
    process.wait(waiting.SECONDS)
    configure(project, 4)
    project.build(*RESNET)
    time.sleep(2)  # long enough for a stage that had survived to write its outputs
    assert project.bundle_digest("aarch64/resnet") == before
    assert project.build(*RESNET) == []


@pytest.mark.heavy
def test_a_half_made_folder_goes_with_the_next_build(tmp_path: Path) -> None:
    """One whose files SCons knows by their list only."""
    project, work = StandInProject(tmp_path), tmp_path / WORK
    project.scons(*RESNET, FAKE_KILL=f"{WORK}/objects")
    assert any(work.glob(".objects.*"))
    project.build(*RESNET)
    assert not any(work.glob(".objects.*"))
    # As after Ctrl-C: SCons has saved its signatures, without those of the stage that was interrupted.
    (work / ".objects.left").mkdir()
    (project.folder / "build/.stages/journal").write_text(f"signatures of before\n{WORK}/objects\n")
    assert project.build(*RESNET) == []
    assert not any(work.glob(".objects.*"))
