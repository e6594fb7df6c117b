"""Compiles Triton's templates to PTX, and caches kernels by a digest of all that decides their code.

Triton runs in a process of its own (worker.py), which starts with the first kernel that is not in the cache.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kiln.errors import KilnError
from kiln.files import atomic_write, read_json
from kiln.paths import cache_dir
from kiln.sources.cuda_toolkit import cuda_toolkit
from kiln.sources.triton_wheel import VERSION, triton_folder

_HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class KernelRequest:
    """A kernel to compile: a function of a template, with types and constants for its parameters.

    `types`: Triton's types of the run-time parameters, in order, such as *fp16 and i32. `archs`: GPU
    architectures such as 90. `warps` of a block; `stages` of asynchronous copies in its loops.
    """

    template: str
    kernel: str
    types: Mapping[str, str]
    constants: Mapping[str, Any]
    archs: Sequence[int]
    warps: int
    stages: int

    @property
    def text(self) -> str:
        """The request as a line of JSON, for the compiler and as part of the key of the cache."""
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True)
class CompiledKernel:
    """PTX modules, one for each architecture; threads of a block, and its dynamic shared memory in bytes."""

    ptx: list[str]
    threads: int
    dynamic_bytes: int


def compile_kernel(request: KernelRequest) -> CompiledKernel:
    """The kernel of a request. Raises KilnError if Triton cannot be fetched or rejects the kernel."""
    digest = hashlib.sha256("\0".join([VERSION, _sources(), request.text]).encode()).hexdigest()
    path = cache_dir() / "triton" / "kernels" / f"{digest[:32]}.json"
    if not path.is_file():
        answer = _ask(request.text)
        if "error" in answer:
            first = str(answer["error"]).splitlines()[0][:300]
            raise KilnError(f"byoc=triton: {request.kernel} {json.dumps(dict(request.constants))}: {first}")
        atomic_write(path, json.dumps(answer, sort_keys=True))
    return CompiledKernel(**read_json(path))


@functools.cache
def _sources() -> str:
    """Digest of the templates and of the program that compiles them."""
    files = [_HERE / "worker.py", *sorted((_HERE / "templates").glob("*.py"))]
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()


def environment(folder: Path) -> dict[str, str]:
    """Environment of a process that imports Triton from `folder`, with ptxas of Kiln's CUDA toolkit."""
    ptxas = str(cuda_toolkit() / "bin" / "ptxas")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    variables = {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "TRITON_BACKENDS_IN_TREE": "1"}
    variables |= {"TRITON_DEFAULT_FP_FUSION": "1", "TRITON_DISABLE_LINE_INFO": "1"}
    return {**inherited, **variables, "TRITON_PTXAS_PATH": ptxas, "TRITON_PTXAS_BLACKWELL_PATH": ptxas}


_process: subprocess.Popen[str] | None = None


def _ask(line: str) -> dict[str, Any]:
    """The answer of Triton's process. Raises KilnError if it ends."""
    global _process
    if _process is None or _process.poll() is not None:
        _process = subprocess.Popen(
            [sys.executable, str(_HERE / "worker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment(triton_folder()),
        )
        atexit.register(_process.communicate)  # ends it, and so removes its folder of temporary files
    assert _process.stdin is not None and _process.stdout is not None
    try:
        _process.stdin.write(line + "\n")
        _process.stdin.flush()
        answer = _process.stdout.readline()
    except OSError:
        answer = ""
    if not answer:
        raise KilnError(f"byoc=triton: Triton's compiler ended with status {_process.wait()}")
    result: dict[str, Any] = json.loads(answer)
    return result
