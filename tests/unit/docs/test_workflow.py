"""The workflow of GitHub Actions runs commands that exist and keeps the folders that they write."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import kiln
import yaml

ROOT = Path(kiln.__file__).resolve().parents[2]
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))


def steps(job: str) -> list[str]:
    """The commands of a job."""
    return [step["run"] for step in WORKFLOW["jobs"][job]["steps"] if "run" in step]


def test_the_commands_are_programs_of_the_project() -> None:
    for command in [*steps("tests"), *steps("artifacts")]:
        program = shlex.split(command)[0]
        assert program == "python" or os.access(ROOT / program, os.X_OK), command


def test_the_gate_is_what_every_change_must_pass() -> None:
    assert steps("tests") == ["./.ci/run"]


def test_uploaded_folders_are_those_that_the_commands_write() -> None:
    uploaded = [
        step["with"]["path"]
        for step in WORKFLOW["jobs"]["artifacts"]["steps"]
        if "path" in step.get("with", {})
    ]
    assert uploaded == ["build/wheel/", "build/site/"]
    assert any("--wheel-dir build/wheel" in command for command in steps("artifacts"))
    assert "site_dir: build/site" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
