"""Runs Linux programs of another CPU in QEMU's user-mode emulation; the target's YAML sets the CPU."""

from __future__ import annotations

from kiln import packages
from kiln.config import Target
from kiln.device.check import host_cpu
from kiln.device.check.runners.local import LocalRunner, checked_emulator
from kiln.errors import KilnError


def open_runner(target: Target) -> LocalRunner:
    """The runner of targets that name an emulator.

    Raises KilnError as `checked_emulator`.
    """
    emulator, path = checked_emulator(target)
    return LocalRunner(
        " ".join([emulator.command, *emulator.args]),
        [path, *emulator.args, *sysroot(target)],
        emulator.env,
    )


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
