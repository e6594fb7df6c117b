"""The environment with PyTorch, which is separate from Kiln's own and sees its packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from kiln.errors import KilnError
from kiln.imports import check_imports

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build/zoo"
REQUIREMENTS = ROOT / "zoo/requirements.txt"
PYTHON = WORK / "venv/bin/python"


def variables() -> dict[str, str]:
    """The environment of the processes that export and build."""
    path = os.pathsep.join([str(ROOT / "build_tools"), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def install(python: Path) -> None:
    """Make the environment of `python` and install PyTorch there.

    Raises KilnError when pip fails, and when what it has installed does not fit together.
    """
    folder = python.parents[1]
    if not python.exists():
        _call([sys.executable, "-m", "venv", str(folder)])
    words = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site_packages = subprocess.run(
        [str(python), "-c", words], check=True, capture_output=True, text=True
    ).stdout.strip()
    (Path(site_packages) / "kiln_environment.pth").write_text(sysconfig.get_path("purelib") + "\n")
    _call([str(python), "-m", "pip", "install", "-r", str(REQUIREMENTS)])
    check_imports(python, _names())


def _names() -> list[str]:
    """The distributions that the zoo requires."""
    lines = REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    return [line.partition("==")[0] for line in lines if "==" in line]


def listed(python: Path) -> dict[str, str]:
    """The models of the zoo, each with its group. Raises KilnError where the environment is missing."""
    if not python.exists():
        raise KilnError(
            f"{python}: no such file; the zoo needs PyTorch and the libraries of zoo/requirements.txt in an "
            "environment of their own: ./kiln zoo install"
        )
    done = subprocess.run(
        [str(python), "-m", "zoo.export", "list"],
        env=variables(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        check_imports(python, _names())
        lines = done.stderr.strip().splitlines() or ["it prints no reason"]
        raise KilnError(f"{python}: cannot import the zoo's models: {lines[-1]}; ./kiln zoo install")
    models: dict[str, str] = json.loads(done.stdout)
    return models


def _call(command: list[str]) -> None:
    print(" ".join(command), file=sys.stderr)
    if subprocess.run(command, check=False, stdout=sys.stderr).returncode != 0:
        raise KilnError(f"{' '.join(command)}: failed, the lines above say why")
