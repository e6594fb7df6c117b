"""A stand-in for a GPU in tests: a driver (fake_cuda.c), and kernels compiled for this processor."""

from __future__ import annotations

import functools
import json
import os
import platform
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kiln.byoc.backends.cutlass import include_folders
from kiln.config import Target, load_target
from kiln.emit.cuda_conversions import KERNEL as CONVERSION
from kiln.kernels.gpu import device_code
from kiln.sources.cuda_toolkit import cuda_toolkit
from kiln.toolchain import compiler_command, link

# Kind of machine → the target whose C compiler and CPU the stand-ins are compiled with.
BASELINES = {"x86_64": "x86_64_v2", "aarch64": "aarch64"}
HERE = Path(__file__).resolve().parent
_FIRST = re.compile(r'^(extern "C" __global__|struct kiln_conversion )', re.MULTILINE)
_BARRIER = re.compile(r"\b__(syncthreads|syncwarp|shfl_\w+)\(")


def compiler(language: str) -> tuple[Target, list[str]]:
    """The target of the stand-ins, and zig's command that compiles for it. `language`: cc or c++.

    Without a target zig would compile for the very processor that it runs on. The stand-ins are compiled for
    the least one that Kiln's targets name, so they and the numbers that they compute are the same everywhere.
    """
    target = load_target(BASELINES.get(platform.machine(), "x86_64_v2"))
    command = compiler_command(target)
    command[command.index("cc")] = language
    return target, command


def zig(language: str, arguments: Sequence[str]) -> None:
    """Compile and link for this kind of machine, with caches as a build has them. `language`: cc or c++."""
    target, command = compiler(language)
    link(target, [*command, *arguments], "compiling a stand-in")


def driver(folder: Path) -> Path:
    """A folder with a libcuda.so.1 that stands in for NVIDIA's."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "libcuda.so.1").write_bytes(_driver())
    return folder


@functools.cache
def _driver() -> bytes:
    """The stand-in for the driver, compiled once for all tests of a process."""
    flags = ["-std=gnu11", "-O1", "-shared", "-fPIC", "-fno-sanitize=undefined"]
    with tempfile.TemporaryDirectory(prefix="kiln-driver-") as folder:
        library = Path(folder, "libcuda.so.1")
        zig("cc", [*flags, str(HERE / "fake_cuda.c"), "-o", str(library)])
        return library.read_bytes()


def kernels_on_cpu(
    source: str, plan: Mapping[str, Any], library: Path, optimise: str = "-O1", external: str = ""
) -> Path:
    """The kernels of a plan, from their CUDA C, as a library that the stand-in for the driver can call.

    `external`: CUDA C of the kernels that backends have written, which include CUTLASS.
    """
    flags = ["-std=c++17", optimise, "-shared", "-fPIC", "-w", "-fno-exceptions", "-fno-strict-aliasing"]
    flags += ["-fno-sanitize=undefined", f"-I{HERE}", f"-I{Path(device_code.__file__).parent}"]
    paths = []
    kernels = [kernel for kernel in plan["kernels"] if "external" not in kernel]
    kernels += [{"symbol": CONVERSION}] if f" {CONVERSION}(" in source else []
    if kernels:
        first = _FIRST.search(source)
        assert first is not None
        # C++ wants alignas first, nvcc does not mind.
        body = re.sub(r"\b__shared__ (alignas\(\d+\))", r"\1 __shared__", source[first.start() :])
        paths.append(library.with_suffix(".cpp"))
        files = device_code.files_of(body)
        headers = ["cuda_on_cpu.h", *(["matrix_on_cpu.h", *files] if files else [])]
        lines = [f'#include "{header}"' for header in headers]
        paths[-1].write_text("\n".join([*lines, body, *_entries(body, kernels)]), "utf-8")
    if external:
        kernels = [kernel for kernel in plan["kernels"] if "external" in kernel]
        paths.append(library.with_suffix(".external.cpp"))
        parts = ['#include "cutlass_on_cpu.h"', external, *_entries(external, kernels)]
        paths[-1].write_text("\n".join(parts), "utf-8")
        folders = [HERE / "cutlass_on_cpu", cuda_toolkit() / "include", *include_folders()]
        flags += [f"-I{folder}" for folder in folders]
    # As C++ the linker gets zig's C++ library, which takes a minute to build and which only CUTLASS needs.
    zig("c++" if external else "cc", [*flags, *map(str, paths), "-o", str(library)])
    return library


def _entries(body: str, kernels: Sequence[Mapping[str, Any]]) -> list[str]:
    """For each kernel the functions by which fake_cuda.c knows it."""
    parts = []
    for kernel in kernels:
        symbol = kernel["symbol"]
        definition = re.search(rf'^extern "C" __global__.*\b{symbol}\((.*)\) \{{$', body, re.MULTILINE)
        assert definition is not None, symbol
        end = body.index("\n}\n", definition.end())
        waits = _BARRIER.search(body, definition.end(), end) or "external" in kernel
        barriers = "true" if waits else "false"
        types = [re.sub(r"\s*(__restrict__)?\s*\w+$", "", word) for word in definition[1].split(", ")]
        arguments = ", ".join(f"*({type_} *)args[{i}]" for i, type_ in enumerate(types))
        if body.startswith("\n  kiln_after_launches();", definition.end()):
            parts.append(f'extern "C" const unsigned {symbol}_waits = 1;')
        parts.append(
            f"static void {symbol}_thread(void **args) {{ {symbol}({arguments}); }}\n"
            f'extern "C" const unsigned {symbol}_args = {len(types)};\n'
            f'extern "C" const unsigned {symbol}_bytes = sizeof({types[0] if types else "int"});\n'
            f'extern "C" void {symbol}_on_cpu(const unsigned *grid, const unsigned *block, void **args) {{\n'
            f"    kiln_on_cpu({symbol}_thread, {barriers}, grid, block, args);\n}}"
        )
    return parts


def environment(driver_folder: Path, **settings: object) -> dict[str, str]:
    """An environment in which programs find the stand-in; `settings` without their KILN_FAKE_."""
    variables = {f"KILN_FAKE_{name.upper()}": str(value) for name, value in settings.items()}
    return {**os.environ, "LD_LIBRARY_PATH": str(driver_folder), **variables}


def read_plan(stages: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((stages / "plan" / "plan.json").read_text(encoding="utf-8"))
    return content
