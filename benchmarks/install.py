"""`./kiln bench install`: makes the environments of the peers from their requirements files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from kiln.errors import KilnError
from kiln.imports import check_imports

from benchmarks.contenders import Folders, check_peers, requirements
from benchmarks.peers import litert, load_peer
from benchmarks.workers import ROOT, say


def commands(peers: Sequence[str], folders: Folders) -> dict[Path, list[str]]:
    """By interpreter, the arguments of `pip install` that its environment needs."""
    packages = {
        folders.python_of(peer): ["--no-deps", "-r", str(ROOT / requirements(peer))] for peer in peers
    }
    if "litert" in peers:  # the converter's own dependencies change too often to be listed
        packages[litert.converter()] = ["-r", str(ROOT / "benchmarks/requirements-onnx2tf.txt")]
    return packages


def run(peers: Sequence[str], folders: Folders) -> None:
    """Install the environments of `peers`, several GB for all of them. Raises KilnError if pip fails.

    Raises KilnError, too, for a package that pip has installed and that cannot be imported.
    """
    check_peers(peers)
    for python, words in commands(peers, folders).items():
        if not python.exists():
            _call([sys.executable, "-m", "venv", str(python.parents[1])])
        _call([str(python), "-m", "pip", "install", *words])
    for peer in peers:
        check_imports(folders.python_of(peer), load_peer(peer).DISTRIBUTIONS)
    if "litert" in peers:
        check_imports(litert.converter(), ["onnx2tf"])


def _call(command: list[str]) -> None:
    say(" ".join(command).replace(f"{Path.cwd()}/", ""))
    if subprocess.run(command, check=False, stdout=sys.stderr).returncode != 0:
        raise KilnError(f"{' '.join(command)}: failed, the lines above say why")
