"""Builds the runtime's own C tests and fuzz targets, which are next to its sources."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from kiln import packages
from kiln.emit.headers import include_flags
from kiln.paths import cache_dir, data_dir

RUNTIME = data_dir("runtime_c")
INCLUDES = [f"-I{RUNTIME / folder}" for folder in ("core", "cuda", "test")]
CORE = ("session", "check", "dynamic", "memory", "content", "params", "text")
WARNINGS = ("-std=c11", "-Wall", "-Wextra", "-Wconversion", "-Wpedantic", "-Werror")
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")


@dataclass(frozen=True)
class Program:
    """A test program: the sources that it needs besides the core and the model, and its arguments."""

    main: str
    others: tuple[str, ...] = ("threads_none",)
    arguments: tuple[str, ...] = ()
    policies: tuple[str, ...] = ("cpu_none", "crc_sliced")


# The folder that platform_posix_test writes to is its working folder.
TESTS = {
    "check": Program("check_test"),
    "memory": Program("memory_test"),
    "compatible": Program("compatible_test", ("threads_none", "compatible")),
    "content": Program("content_test"),
    "crc_sliced": Program("crc_test"),
    "crc_small": Program("crc_test", policies=("cpu_none", "crc_small")),
    "indices": Program("indices_test", ("threads_none", "indices")),
    "params": Program("params_test"),
    "regions": Program("regions_test", ("threads_none", "regions")),
    "session": Program("session_test"),
    "state": Program("state_test", ("threads_none", "state")),
    "states_none": Program("states_test", ("threads_none", "traffic")),
    "states_pthread": Program("states_test", ("threads_pthread", "platform_posix", "traffic")),
    "text": Program("text_test"),
    "trace": Program("trace_test", ("threads_none", "trace")),
    "traffic": Program("traffic_test", ("threads_none", "traffic")),
    "platform_posix": Program("platform_posix_test", ("threads_none", "platform_posix"), (".",)),
    "threads_none": Program("threads_test", ("threads_none",), ("3", "1")),
    "threads_pthread": Program("threads_test", ("threads_pthread", "platform_posix"), ("3",)),
}
CPU_POLICY = {"x86_64": "cpu_x86", "AMD64": "cpu_x86"}  # by the machine's name; of others ARM's


def cpu_test(machine: str) -> Program:
    """The test of the runtime's file that queries the processor of a machine for its features."""
    return Program("cpu_test", policies=(CPU_POLICY.get(machine, "cpu_arm_linux"), "crc_sliced"))


FUZZ = {
    "arguments": Program("arguments_fuzz", ("threads_none", "fuzz_main")),
    "params": Program("params_fuzz", ("threads_none", "fuzz_main")),
}


def need(tool: str) -> str:
    """The path of a program that a test needs; the test fails if it is missing."""
    path = shutil.which(tool)
    if path is None:
        pytest.fail(packages.missing_program(tool), pytrace=False)
    return path


def run(command: Sequence[str], cwd: Path | None = None, timeout: float = 300) -> str:
    """Standard output of a command that must succeed; otherwise the test fails with its last lines."""
    caches = {"ZIG_GLOBAL_CACHE_DIR": str(cache_dir() / "zig")}  # as in builds: C libraries are made once
    done = subprocess.run(
        command, cwd=cwd, env={**caches, **os.environ}, check=False, capture_output=True, text=True,
        errors="replace", timeout=timeout,
    )  # fmt: skip
    if done.returncode != 0:
        tail = (done.stdout + done.stderr)[-4000:]
        pytest.fail(f"{' '.join(command)}\nexit status {done.returncode}\n{tail}", pytrace=False)
    return done.stdout


class Builder:
    """Compiles each file once with one compiler and one set of flags, and links programs of them."""

    def __init__(self, compiler: Sequence[str], flags: Sequence[str], folder: Path) -> None:
        self._command = [*compiler, *WARNINGS, "-g", *flags]
        self._folder = folder

    def object(self, name: str) -> Path:
        """The object of NAME.c, in whichever folder of runtime_c it is."""
        out = self._folder / f"{name}.o"
        if not out.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            (source,) = RUNTIME.glob(f"*/{name}.c")
            run([*self._command, *include_flags(), *INCLUDES, "-c", str(source), "-o", str(out)])
        return out

    def link(self, program: Program, *flags: str) -> Path:
        """Link a test program from its objects; returns its path."""
        names = (*CORE, "test_model", *program.policies, *program.others, program.main)
        out = self._folder / "-".join((program.main, *program.policies, *program.others))
        objects = [str(self.object(name)) for name in names]
        run([*self._command, *objects, "-pthread", *flags, "-o", str(out)])
        return out
