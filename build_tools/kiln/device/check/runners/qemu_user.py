"""Runs Linux programs of another CPU in QEMU's user-mode emulation; the target's YAML sets the CPU."""

from __future__ import annotations

import re
import shutil
import subprocess

from kiln import packages
from kiln.config import Target
from kiln.config.c_compiler import Emulator
from kiln.device.check import host_cpu
from kiln.device.check.runners.local import LocalRunner, emulator_of
from kiln.errors import KilnError


def open_runner(target: Target) -> LocalRunner:
    """The runner of targets that name an emulator.

    Raises KilnError when the emulator is too old, and, with the command that installs it, when it is missing.
    """
    emulator, path = emulator_of(target)
    if (old := too_old(emulator)) is not None:
        raise KilnError(f"target '{target.name}': {old}")
    return LocalRunner(
        " ".join([emulator.command, *emulator.args]),
        [path, *emulator.args, *sysroot(target)],
        emulator.env,
    )


def too_old(emulator: Emulator) -> str | None:
    """The reason why the installed version of an emulator cannot run the target's code.

    None if it can, if any version can, and if the emulator is not installed or does not report its version.
    """
    path = shutil.which(emulator.command)
    if emulator.since is None or path is None:
        return None
    version_output = subprocess.run(
        [path, "--version"], capture_output=True, text=True, errors="replace", check=False
    )
    match = re.search(r"\d+(\.\d+)+", version_output.stdout)
    if match is None or _numbers(match.group()) >= _numbers(emulator.since):
        return None
    return f"{emulator.command} is version {match.group()}, and {emulator.since} or later is needed"


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


def sysroot(target: Target) -> list[str]:
    """QEMU's -L for programs that load a foreign C library at start-up; empty for other programs.

    Raises KilnError, with the command that installs the C library, when it is missing.
    """
    if not host_cpu.loads_foreign_libc(target):
        return []
    folder, package = packages.cross_libc(target.arch, target.triple)
    if package is not None:
        raise KilnError(
            f"target '{target.name}': its programs load {host_cpu.libc_of_programs(target)}, and {folder} "
            f"has none; {packages.how_to_install(package)}"
        )
    return ["-L", str(folder)]
