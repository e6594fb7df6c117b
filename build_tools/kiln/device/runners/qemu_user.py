"""Runs Linux programs of another CPU under QEMU's user-mode emulation, the CPU pinned by the target."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

from kiln.config import Target
from kiln.device.runners.local import LocalRunner
from kiln.errors import KilnError

# Debian's names, in its packages of other machines' C libraries.
_DEBIAN = {"aarch64": "arm64", "armv7": "armhf", "x86_64": "amd64"}


def open_runner(target: Target) -> LocalRunner:
    """The runner of targets that name an emulator. Raises KilnError with the command that installs it."""
    emulator = target.emulator
    if emulator is None:
        raise KilnError(f"target '{target.name}': it names no emulator (key 'emulator')")
    path = shutil.which(emulator.command)
    if path is None:
        raise KilnError(
            f"target '{target.name}': its emulator '{emulator.command}' is not installed; "
            "install it with: sudo apt-get install qemu-user"
        )
    return LocalRunner(
        " ".join([emulator.command, *emulator.args]),
        [path, *emulator.args, *_sysroot(target)],
        emulator.env,
    )


def _sysroot(target: Target) -> list[str]:
    """QEMU's -L for programs that load their C library when they start; nothing where they do not.

    Raises KilnError with the command that installs the C library when it is missing.
    """
    emulator = target.emulator
    given = emulator is not None and ("-L" in emulator.args or "QEMU_LD_PREFIX" in emulator.env)
    native = platform.machine() == target.arch
    if target.libc.static or given or native or "QEMU_LD_PREFIX" in os.environ:
        return []
    folder = Path("/usr", sysroot_name(target.triple))
    if not any(folder.glob("lib*/ld-*.so*")):
        raise KilnError(
            f"target '{target.name}': its programs load {target.libc.name}, and {folder} has none; "
            f"install it with: sudo apt-get install libc6-{_DEBIAN[target.arch]}-cross"
        )
    return ["-L", str(folder)]


def sysroot_name(triple: str) -> str:
    """The GNU name of an LLVM triple's system: no vendor, `arm` for all of its 32-bit versions."""
    arch, *rest = triple.split("-")
    if len(rest) > 2:
        rest = rest[1:]
    return "-".join(["arm" if arch.startswith("arm") else arch, *rest])
