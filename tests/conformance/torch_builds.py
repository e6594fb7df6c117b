"""Builds of PyTorch models by SCons in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from scons_real import ROOT


def build(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run SCons in `folder` for the target `host` with `arguments`."""
    return subprocess.run(
        [sys.executable, "-m", "SCons", "-Q", "-f", str(ROOT / "SConstruct"), "target=host", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
    )


def passes(folder: Path, name: str) -> str:
    """Build and test the model that the function `name` in nets.py returns; the output of the build."""
    done = build(folder, f"model=nets:{name}", "test")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout
