"""The footprint of a first run: time from the start of the process, peak memory, bytes to deploy."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from elftools.elf.elffile import ELFFile
from kiln.config import load_target
from kiln.device.link import link, link_flags
from kiln.errors import KilnError
from kiln.files import read_json

from benchmarks.contenders import Contender, Folders, Subject
from benchmarks.workers import Worker, WorkerError, say

PROGRAMS = Path(__file__).resolve().parent / "programs"
PYTHON = "Python and numpy"


@dataclass(frozen=True)
class Sizes:
    """Bytes to deploy: the model's parameters (a peer: its model file), and all the rest."""

    code: int
    weights: int


@dataclass
class Footprint:
    """One way to run one model; times in seconds, memory in bytes."""

    model: str
    name: str
    cold: list[float] = field(default_factory=list)
    rss: list[int] = field(default_factory=list)
    sizes: Sizes | None = None  # None: nothing of a model is deployed

    @property
    def cold_start(self) -> float:
        """Median time from the start of the process to the first output, in seconds."""
        return median(self.cold)

    @property
    def peak_rss(self) -> float:
        """Median of the peak memory, in bytes."""
        return median(self.rss)


def measure(
    subject: Subject, files: Mapping[Contender, Path], rounds: int, cpu: int, folders: Folders
) -> list[Footprint]:
    """The footprints of every contender in Python, of Kiln as a C program, and of Python alone.

    They take turns: each starts once in each of `rounds` rounds.
    """
    footprints: dict[str, Footprint] = {}
    programs = {
        contender.name: steps_program(file, contender.target, folders)
        for contender, file in files.items()
        if contender.target is not None
    }
    for _ in range(rounds):
        for contender, file in files.items():
            if contender.name in programs:
                name = f"{contender.name}, in C"
                in_c = footprints.setdefault(name, Footprint(subject.name, name, sizes=_kiln_bytes(file)))
                first = run_steps(programs[contender.name], file, subject, 0, 1, [cpu])
                in_c.cold.append(first.cold)
                in_c.rss.append(first.rss)
            _from_python(footprints, subject, contender, file, cpu, folders)
        _from_python(footprints, subject, None, subject.source, cpu, folders)
    return list(footprints.values())


def _from_python(
    footprints: dict[str, Footprint],
    subject: Subject,
    contender: Contender | None,
    file: Path,
    cpu: int,
    folders: Folders,
) -> None:
    request: dict[str, Any] = {
        "do": "first",
        "peer": contender.module if contender else None,
        "file": str(file.resolve()),
        "interface": subject.interface,
        "threads": 1,
        "cpus": [cpu],
    }
    name = contender.name if contender else PYTHON
    try:
        with Worker(folders.python_of(request["peer"]), request, folders.log) as worker:
            answer = worker.answer()
    except WorkerError as error:
        say(f"{subject.name} on {name}: no footprint: {error}")
        return
    entry = footprints.get(name)
    if entry is None:
        sizes = _bytes(contender, file, answer["mapped"])
        entry = footprints[name] = Footprint(subject.name, name, sizes=sizes)
    entry.cold.append(answer["monotonic"] - worker.started)
    entry.rss.append(answer["rss"])


def _bytes(contender: Contender | None, file: Path, mapped: Sequence[str]) -> Sizes | None:
    if contender is None:
        return None
    if contender.target is not None:
        return _kiln_bytes(file)
    code = sum(loaded_bytes(Path(path)) for path in mapped)
    parts = [file, file.with_suffix(".bin")] if file.suffix == ".param" else [file]
    return Sizes(code, sum(part.stat().st_size for part in parts))


def _kiln_bytes(bundle: Path) -> Sizes:
    """Bytes that the bundle adds to a program, from its manifest: a linked program less an empty one."""
    manifest = read_json(bundle / "manifest.json")
    weights = manifest["params"]["bytes"]
    linked = manifest["linked"]["flash_bytes"]
    return Sizes(linked if (bundle / "params.bin").is_file() else linked - weights, weights)


def loaded_bytes(path: Path) -> int:
    """Bytes of the loaded segments of an ELF file, without symbols and debug information."""
    with path.open("rb") as stream:
        segments = ELFFile(stream).iter_segments("PT_LOAD")
        return sum(segment["p_filesz"] for segment in segments)


@dataclass(frozen=True)
class Steps:
    """The output of programs/steps.c: seconds to the first output, peak bytes, nanoseconds [round][step]."""

    cold: float
    rss: int
    bucket: int  # whose steps they are
    variant: str  # whose kernels they call
    rounds: list[list[int]]


def steps_program(bundle: Path, target: str, folders: Folders) -> Path:
    """programs/steps.c linked with the bundle. Raises KilnError."""
    name = bundle.name
    described = load_target(target)
    return link(
        described,
        [PROGRAMS / "steps.c"],
        ["-O2", *link_flags(described, "pthread"), f'-DKILN_HEADER="{name}.h"', f"-DKILN_MODEL={name}"],
        folders.work / "programs" / f"{target}-{name}" / "steps",
        include=[bundle / "include"],
        libraries=[bundle / "lib" / f"lib{name}.a"],
    )


def run_steps(
    program: Path,
    bundle: Path,
    subject: Subject,
    rounds: int,
    threads: int,
    cpus: Sequence[int],
    variant: str = "",
) -> Steps:
    """Run programs/steps.c, pinned to `cpus`, with the kernels of `variant`; empty: as kiln_open chooses.

    Raises KilnError with the program's message if it fails.
    """
    params = bundle / "params.bin"
    inputs = [tensor["file"] for tensor in subject.interface["inputs"]]
    dynamic_dims = [dim["name"] for dim in read_json(bundle / "manifest.json").get("dims", [])]
    sizes = [str(subject.interface["dims"][name]) for name in dynamic_dims]
    params_file = str(params) if params.is_file() else "-"
    words = [str(rounds), str(threads), params_file, variant or "-", *sizes, *inputs]
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)  # handed down: a program that pins another would start first
    try:
        started = time.monotonic()
        done = subprocess.run([str(program), *words], capture_output=True, text=True, check=False)
    finally:
        os.sched_setaffinity(0, before)
    if done.returncode != 0:
        raise KilnError(f"{program}: {done.stderr.strip() or f'exit status {done.returncode}'}")
    first = rss = bucket = 0
    ran = ""
    measured: list[list[int]] = []
    for line in done.stdout.splitlines():
        match line.split():
            case ["first", nanoseconds]:
                first = int(nanoseconds)
            case ["rss", size]:
                rss = int(size)
            case ["bucket", number]:
                bucket = int(number)
            case ["variant", name]:
                ran = name
            case ["steps", *times]:
                measured.append([int(t) for t in times])
    return Steps(first * 1e-9 - started, rss, bucket, ran, measured)
