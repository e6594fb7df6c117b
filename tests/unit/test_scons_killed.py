"""kill -9 at random moments: whatever was left, the next build's result is that of a build from nothing."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from scons_project import Project

RESNET = ("target=aarch64", "model=resnet")
KILLS = 20


def test_a_killed_build_leaves_nothing_that_is_wrongly_trusted(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Between two configurations, each build killed: only the stages know which one they were run for."""
    clean = {}
    for cores in (4, 8):
        reference = Project(tmp_path_factory.mktemp("reference"))
        configure(reference, cores)
        reference.build(*RESNET)
        clean[cores] = reference.bundle_digest("aarch64/resnet")
    assert clean[4] != clean[8]
    project, chance = Project(tmp_path), random.Random(20)
    project.build(*RESNET)
    interrupted = 0
    for kill in range(KILLS):
        configure(project, 8)
        process = subprocess.Popen(
            project.command(*RESNET, f"-j{1 + kill % 2}"),
            cwd=tmp_path,
            env=project.environment(FAKE_SECONDS="0.05"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(chance.uniform(0.2, 1.6))
        process.send_signal(signal.SIGKILL)
        interrupted += process.wait() == -signal.SIGKILL
        wanted = chance.choice([4, 8])
        configure(project, wanted)
        project.build(*RESNET)
        assert project.bundle_digest("aarch64/resnet") == clean[wanted], f"kill {kill}"
        assert project.build(*RESNET) == []
        assert [path for path in (tmp_path / "build").rglob(".*") if path.name != ".stages"] == []
        configure(project, 4)
        project.build(*RESNET)
    print(f"{interrupted} of {KILLS} builds were killed before they ended")
    assert interrupted >= KILLS // 2


def configure(project: Project, cores: int) -> None:
    """Change a key of the target that every stage from `lower` on reads."""
    path = project.folder / "targets/aarch64.yaml"
    lines = [
        f"cores: {cores}" if line.startswith("cores:") else line for line in path.read_text().splitlines()
    ]
    path.write_text("\n".join(lines) + "\n")


def test_the_next_build_waits_for_the_last_process_of_a_killed_one(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.build(*RESNET)
    before = project.bundle_digest("aarch64/resnet")
    configure(project, 8)
    process = subprocess.Popen(
        project.command(*RESNET), cwd=tmp_path, env=project.environment(FAKE_SECONDS="1.5"),
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    while "lower" not in process.stdout.readline():
        pass
    process.kill()
    process.wait()
    configure(project, 4)
    project.build(*RESNET)
    time.sleep(2)  # long enough for a stage that had survived to write its outputs
    assert project.bundle_digest("aarch64/resnet") == before
    assert project.build(*RESNET) == []


def test_a_half_made_folder_goes_with_the_next_build(tmp_path: Path) -> None:
    """One whose files SCons knows by their list only."""
    project = Project(tmp_path)
    project.build(*RESNET)
    configure(project, 8)
    process = subprocess.Popen(
        project.command(*RESNET), cwd=tmp_path, env=project.environment(FAKE_SECONDS="0.4"),
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    work = tmp_path / "build/.stages/aarch64/resnet"
    end = time.monotonic() + 60
    while not any(work.glob(".objects.*")) and time.monotonic() < end:
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert any(work.glob(".objects.*"))
    project.build(*RESNET)
    assert not any(work.glob(".objects.*"))
