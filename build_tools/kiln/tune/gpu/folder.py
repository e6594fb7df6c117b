"""The folder with the candidates of a model: the program that times them, its list, their machine code."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kiln.byoc.registry import load
from kiln.config import Target, sizes
from kiln.emit.cuda_modules import modules_of
from kiln.emit.cuda_objects import image_of, source_of
from kiln.files import atomic_write
from kiln.kernels.gpu import early_launch
from kiln.lower.schema import ExternalCode, SizeArgument, Step
from kiln.paths import data_dir
from kiln.toolchain import link as link_tool
from kiln.toolchain import oldest_cpu_command
from kiln.tune.gpu.subjects import GpuSubject

PROGRAM, LIST, TIMES = "time_gpu", "candidates.txt", "times.tsv"
_SOURCE = Path(__file__).resolve().parents[1] / "programs" / "time_gpu.c"
_COMPILED = "kernels.fatbin"  # of all kernels in CUDA C


@dataclass(frozen=True)
class CandidateFolder:
    """A folder with all files that a machine with a GPU needs to time candidates.

    `digest` of the list of candidates: a file of times names it; `files`: names of the images.
    """

    path: Path
    digest: str
    files: tuple[str, ...]

    @property
    def program(self) -> Path:
        return self.path / PROGRAM


def write(subjects: Sequence[GpuSubject], target: Target, path: Path, cache: Path) -> CandidateFolder:
    """Compile the candidates and write the folder `path`. Raises KilnError if a compiler fails.

    `cache`: folder of machine code that builds share.
    """
    assert target.cuda is not None
    path.mkdir(parents=True, exist_ok=True)
    images = _images(subjects, target, cache)
    for name, image in images.items():
        atomic_write(path / name, image)
    early = bool(early_launch.archs_of(target.cuda))
    text = "".join(_record(subject, early, images) for subject in subjects)
    digest = hashlib.sha256(text.encode())
    for name in sorted(images):
        digest.update(images[name])
    atomic_write(path / LIST, f"list {digest.hexdigest()[:16]}\n{text}")
    flags = ["-std=gnu11", "-O2", f"-I{data_dir('runtime_c') / 'cuda'}", str(_SOURCE)]
    command = [*oldest_cpu_command(target), *flags, "-o", str(path / PROGRAM)]
    link_tool(target, command, f"linking {PROGRAM} for target '{target.name}'")
    return CandidateFolder(path, digest.hexdigest()[:16], tuple(sorted(images)))


def _externals(subjects: Sequence[GpuSubject]) -> dict[str, ExternalCode]:
    """The kernels that backends wrote, by symbol."""
    return {
        kernel.symbol: kernel.external
        for subject in subjects
        for kernel in subject.steps.kernels
        if kernel.external is not None
    }


def _images(subjects: Sequence[GpuSubject], target: Target, cache: Path) -> dict[str, bytes]:
    """Images by file name: one of all kernels in CUDA C, and one for each kernel in PTX."""
    assert target.cuda is not None
    functions = {name: f for subject in subjects for name, f in subject.steps.functions.items()}
    codes = _externals(subjects)
    in_c = {symbol: code for symbol, code in codes.items() if not code.ptx}
    include = [
        f for name in sorted({code.backend for code in in_c.values()}) for f in load(name).include_folders()
    ]
    source = "".join(in_c[symbol].source for symbol in sorted(in_c)) + source_of(functions, target.cuda)
    images = {_COMPILED: image_of(source, target.cuda, cache, include)[0]} if source else {}
    modules = modules_of({s: c for s, c in codes.items() if c.ptx}, target.cuda, cache)
    return images | {f"{symbol}.fatbin": image for symbol, (image, _) in modules.items()}


def _record(subject: GpuSubject, early: bool, images: Mapping[str, bytes]) -> str:
    """The lines of one candidate in the list that time_gpu.c reads."""
    steps, launched = subject.steps, subject.launched
    owners: dict[str, int] = {}
    for step in launched:
        for name in step.tensors:
            owners.setdefault(steps.root(name).name, len(owners))
    lines = [f"subject {subject.name} {len(owners)} {len(launched)}"]
    for name in owners:
        record = steps.tensors[name].record(steps.box)
        lines.append(f"tensor {record.bytes} {int(record.kind == 'param')}")
    lines += [_launch(subject, step, owners, early, images) for step in launched]
    return "\n".join(lines) + "\n"


def _launch(
    subject: GpuSubject, step: Step, owners: Mapping[str, int], early: bool, images: Mapping[str, bytes]
) -> str:
    steps = subject.steps
    kernel = next(kernel for kernel in steps.kernels if kernel.symbol == step.kernel)
    code, launch = kernel.external, step.launch
    assert launch is not None
    own_image = f"{step.kernel}.fatbin"
    # CUTLASS's kernels do not wait themselves for the launch before them.
    waits = early and (code is None or bool(code.ptx))
    words = [own_image if own_image in images else _COMPILED, step.kernel]
    words += [str(sizes.bounds(extent, steps.box)[1]) for extent in launch.grid]
    words += [str(extent) for extent in launch.block]
    dynamic = 0 if code is None else int(code.dynamic_bytes or 0)
    words += [str(dynamic), str(int(waits)), str(len(step.args))]
    for argument in step.args:
        if isinstance(argument, SizeArgument):
            words.append(f"n{sizes.bounds(argument.dim, steps.box)[1]}")
        else:
            words.append(f"t{owners[steps.root(argument).name]}")
    return " ".join(["launch", *words])
