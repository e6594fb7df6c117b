"""Who takes part in what: the models and bundles that were built, the peers that are installed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kiln
from kiln.errors import KilnError
from kiln.files import atomic_dir, read_json, write_json

from benchmarks.peers import KILN
from benchmarks.workers import WorkerError, ask

CONVERT_TIMEOUT = 1800.0  # seconds; TensorFlow takes its time
REQUIREMENTS = "benchmarks/requirements.txt"


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


@dataclass(frozen=True)
class Subject:
    """A model: the file that every contender gets, and the golden vector that feeds and checks them all."""

    name: str
    source: Path
    interface: dict[str, Any]  # see benchmarks.peers


@dataclass(frozen=True)
class Folders:
    """Where things lie."""

    build: Path  # Kiln's build folder
    python: Path  # of the peers' environment

    @property
    def work(self) -> Path:
        """The benchmark's own part of the build folder."""
        return self.build / "bench"

    @property
    def log(self) -> Path:
        """What frameworks print while they load, convert and run."""
        return self.work / "peers.log"


def find_subject(name: str, folders: Folders, targets: Sequence[str]) -> Subject:
    """The model's source and first golden vector, as the build left them. Raises LeftOutError."""
    goldens = [folders.build / target / name / "golden" for target in targets]
    golden = next((folder for folder in goldens if (folder / "golden.json").is_file()), None)
    sources = sorted((folders.build / ".stages/models" / name).glob("source.*"))
    if golden is None or not sources:
        raise LeftOutError(f"{name}: not built; to build it: ./kiln target={','.join(targets)} model={name}")
    vector = read_json(golden / "golden.json")["vectors"][0]
    interface: dict[str, Any] = {"format": sources[0].suffix[1:], "dims": vector.get("dims") or {}}
    for side in ("inputs", "outputs"):
        interface[side] = [
            {key: tensor[key] for key in ("name", "dtype", "shape")} | {"file": str(golden / tensor["file"])}
            for tensor in vector[side]
        ]
    return Subject(name, sources[0], interface)


def kiln_for(target: str) -> Contender:
    """Kiln for that target."""
    return Contender(f"kiln {target}", KILN, kiln.__version__, ("onnx", "tflite"), target)


def find_peer(name: str, folders: Folders) -> Contender:
    """The peer of that name. Raises LeftOutError with the command that installs it."""
    install = f"{os.path.relpath(folders.python)} -m pip install --no-deps -r {REQUIREMENTS}"
    if not folders.python.exists():
        venv = os.path.relpath(folders.python.parents[1])
        raise LeftOutError(
            f"{name}: not installed, left out; to install it: python3 -m venv {venv} && {install}"
        )
    try:
        answer = ask(folders.python, {"do": "version", "peer": name}, folders.log)
    except WorkerError as error:
        raise LeftOutError(f"{name}: left out: {error}") from error
    if answer["missing"]:
        missing = ", ".join(answer["missing"])
        raise LeftOutError(f"{name}: not installed ({missing}), left out; to install it: {install}")
    return Contender(name, name, answer["version"], tuple(answer["sources"]))


def file_for(contender: Contender, subject: Subject, folders: Folders) -> Path:
    """What the contender loads: a bundle, the source, or the peer's own form of it. Raises LeftOutError."""
    pair = f"{subject.name} on {contender.name}"
    if contender.target is not None:
        bundle = folders.build / contender.target / subject.name
        if not (bundle / "lib" / f"lib{subject.name}.so").is_file():
            how = f"./kiln target={contender.target} model={subject.name}"
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
    """Convert once for each version of the peer and of the source, and keep the result."""
    about = subject.source.stat()
    key = f"{contender.version} {about.st_size} {about.st_mtime_ns}"
    place = folders.work / "models" / contender.name / subject.name
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
        answer = ask(folders.python, request, folders.log, CONVERT_TIMEOUT)
        file = Path(answer["file"].replace(str(folder.resolve()), str(place.resolve())))
        write_json(folder / mark.name, {"key": key, "file": str(file)})
    return file
