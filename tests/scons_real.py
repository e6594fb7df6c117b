"""Real builds in folders of their own: the source tree copied, nothing of an earlier build."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import forked

ROOT = Path(__file__).resolve().parents[1]
TREE = ("SConstruct", "build_tools", "targets", "models", "runtime_c")


def copy_tree(folder: Path) -> Path:
    """Copy the parts of the source tree that a build reads into `folder`, with their bytecode."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in TREE:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name)
        else:
            shutil.copyfile(source, folder / name)
    lean_targets(folder / "targets")
    return folder


def lean_targets(folder: Path) -> None:
    """Copy the targets that have variants into `folder`, without these, to save their kernels' time."""
    for path in sorted((ROOT / "targets").glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        lean = re.sub(r"^variants:\n( .*\n)+", "variants: []\n", text, flags=re.MULTILINE)
        if lean != text:
            (folder / path.name).write_text(lean, encoding="utf-8")


def shared_cache(arguments: Sequence[str]) -> list[str]:
    """The option for the cache that all builds of a test run share; none if `arguments` name a cache."""
    folder = os.environ.get("KILN_TEST_STAGES")
    named = any(argument.startswith("cache=") for argument in arguments)
    return [f"cache={folder}"] if folder and not named else []


def scons(folder: Path, *arguments: str, **environment: str) -> str:
    """Build in `folder` in a new process; returns its output. The build must succeed.

    Stages come from the cache of `shared_cache`.
    """
    done = subprocess.run(
        [sys.executable, "-m", "SCons", "-Q", *arguments, *shared_cache(arguments)],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


def own_project(folder: Path) -> Path:
    """A user's own project at `folder`, without files yet."""
    for name in ("models", "targets"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return folder


def build_with_tree(folder: Path, *arguments: str, **environment: str) -> str:
    """Build in `folder` with this tree's SConstruct, in forks (see `forked`); returns its output.

    The build must succeed. Stages come from the cache of `shared_cache`.
    """
    words = ["-Q", "-f", str(ROOT / "SConstruct"), *arguments, *shared_cache(arguments)]
    done = forked.run_scons(words, folder, {**os.environ, **environment})
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


def unpack(path: Path, folder: Path) -> None:
    """Unpack an archive; Python before 3.11.4 has no filters, and these archives are our own."""
    safe: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(path) as archive:
        archive.extractall(folder, **safe)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
