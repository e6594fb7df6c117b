"""The contenders of a comparison: bundles that were built, and peers that are installed."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kiln
from kiln.errors import KilnError
from kiln.files import atomic_dir, read_json, write_json

from benchmarks.peers import ENVIRONMENTS, KILN, PEERS
from benchmarks.workers import WorkerError, ask, say

CONVERT_TIMEOUT = 1800.0  # seconds; TensorFlow takes its time


class LeftOutError(KilnError):
    """Why something is not measured and what to do about it, as one line."""


@dataclass(frozen=True)
class Contender:
    """A way to run models: Kiln for one target, or a peer."""

    name: str  # as printed
    module: str  # in benchmarks.peers
    version: str
    sources: tuple[str, ...]  # formats it reads
    target: str | None = None  # of Kiln; None: a peer
    variant: str | None = None  # of the target, forced; None: the one that kiln_open chooses


@dataclass(frozen=True)
class Subject:
    """A model: the file that every contender gets, and the golden vector that feeds and checks them all."""

    name: str  # as printed
    model: str  # as Kiln calls it
    source: Path
    interface: dict[str, Any]  # see benchmarks.peers


@dataclass(frozen=True)
class Folders:
    """The folders of a run of the benchmark."""

    build: Path  # Kiln's build folder
    python: Path  # of the peers' environment

    def python_of(self, module: str | None) -> Path:
        """The interpreter that a contender runs in: a peer that is large has an environment of its own.

        Kiln runs in this process's environment until a peer is installed.
        """
        environment = ENVIRONMENTS.get(module or "")
        if module == KILN and not self.python.exists():
            return Path(sys.executable)
        return self.work / environment / "bin/python" if environment else self.python

    @property
    def work(self) -> Path:
        """The benchmark's own part of the build folder."""
        return self.build / "bench"

    @property
    def log(self) -> Path:
        """The file that gets the output of frameworks while they load, convert and run."""
        return self.work / "peers.log"


def kiln_for(given: str) -> Contender:
    """The contender Kiln for a target, given as TARGET, or for one variant of it, given as TARGET:VARIANT."""
    target, _, variant = given.partition(":")
    return Contender(f"kiln {given}", KILN, kiln.__version__, ("onnx", "tflite"), target, variant or None)


def requirements(peer: str) -> str:
    """The requirements file with the pinned packages of a peer's environment, from the source tree."""
    environment = ENVIRONMENTS.get(peer)
    return f"benchmarks/requirements-{environment}.txt" if environment else "benchmarks/requirements.txt"


def check_peers(names: Sequence[str]) -> None:
    """Raise KilnError for a name that is not in PEERS."""
    for name in names:
        if name not in PEERS:
            raise KilnError(f"--peer '{name}': allowed are {', '.join(PEERS)}")


def find_peer(name: str, folders: Folders, isa: str | None = None) -> Contender:
    """The contender for a peer. Raises LeftOutError, with the command that installs the peer, without it.

    `isa`: the instruction set that peers are held to; the name of one that cannot be held to it is marked.
    """
    python = folders.python_of(name)
    install = f"{os.path.relpath(python)} -m pip install --no-deps -r {requirements(name)}"
    if not python.exists():
        venv = os.path.relpath(python.parents[1])
        raise LeftOutError(
            f"{name}: not installed, left out; to install it: python3 -m venv {venv} && {install}"
        )
    try:
        answer = ask(python, {"do": "version", "peer": name}, folders.log)
    except WorkerError as error:
        raise LeftOutError(f"{name}: left out: {error}") from error
    if answer["missing"]:
        missing = ", ".join(answer["missing"])
        raise LeftOutError(f"{name}: not installed ({missing}), left out; to install it: {install}")
    held = isa is None or isa in answer["isas"]
    return Contender(name if held else f"{name} †", name, answer["version"], tuple(answer["sources"]))


def file_for(contender: Contender, subject: Subject, folders: Folders) -> Path:
    """The file that the contender loads: a bundle, the model's file, or a peer's conversion of it.

    Raises LeftOutError if there is none.
    """
    pair = f"{subject.name} on {contender.name}"
    if contender.target is not None:
        bundle = folders.build / contender.target / subject.model
        if not (bundle / "lib" / f"lib{subject.model}.so").is_file():
            how = f"./kiln target={contender.target} model={subject.model}"
            raise LeftOutError(f"{pair}: not built, left out; to build it: {how}")
        return bundle
    kind = subject.interface["format"]
    if kind not in contender.sources:
        raise LeftOutError(f"{pair}: left out, it reads no .{kind} files")
    try:
        return _converted(contender, subject, folders)
    except WorkerError as error:
        raise LeftOutError(f"{pair}: left out: {error}") from error


def _converted(contender: Contender, subject: Subject, folders: Folders) -> Path:
    """The model in the peer's own format, converted once for each version of the peer and of the model."""
    content = hashlib.sha256(subject.source.read_bytes()).hexdigest()
    key = f"{contender.version} {content}"
    place = folders.work / "models" / contender.module / subject.name
    mark = place / "converted.json"
    if mark.is_file() and read_json(mark)["key"] == key:
        return Path(read_json(mark)["file"])
    with atomic_dir(place) as folder:
        request = {
            "do": "convert",
            "peer": contender.module,
            "source": str(subject.source.resolve()),
            "interface": subject.interface,
            "folder": str(folder.resolve()),
        }
        answer = ask(folders.python_of(contender.module), request, folders.log, CONVERT_TIMEOUT)
        file = Path(answer["file"].replace(str(folder.resolve()), str(place.resolve())))
        write_json(folder / mark.name, {"key": key, "file": str(file)})
    return file


def files_of(
    subject: Subject, contenders: Sequence[Contender], folders: Folders
) -> tuple[dict[Contender, Path], dict[str, str]]:
    """The file of the model for each contender, and by name why other contenders are left out."""
    files: dict[Contender, Path] = {}
    reasons: dict[str, str] = {}
    for contender in contenders:
        try:
            files[contender] = file_for(contender, subject, folders)
        except LeftOutError as reason:
            say(str(reason))
            reasons[contender.name] = str(reason).partition("left out")[2].lstrip(":, ")
    return files, reasons
