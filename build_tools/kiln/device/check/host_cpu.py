"""Whether this machine can execute a target's code, and whether an emulator needs a C library for it."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable

from kiln.config import Target
from kiln.config.host import LEVELS, read_flags

# Names in /proc/cpuinfo of features that have another name in LLVM: LLVM's name -> /proc/cpuinfo's.
_KERNEL_NAMES = {
    "sse3": "pni",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "lzcnt": "abm",
    "bmi": "bmi1",
    "avxvnni": "avx_vnni",
    "avx512vnni": "avx512_vnni",
    "avx512bf16": "avx512_bf16",
    "amx-int8": "amx_int8",
    "amx-tile": "amx_tile",
    "neon": "asimd",
    "dotprod": "asimddp",
    "fullfp16": "asimdhp",
    "lse": "atomics",
    "crc": "crc32",
    "fp-armv8": "fp",
}
_MACHINES = {"AMD64": "x86_64", "arm64": "aarch64"}


def missing(cpu: str, features: Iterable[str], flags: frozenset[str]) -> str | None:
    """The reason why a CPU with /proc/cpuinfo's `flags` cannot run code for LLVM's `cpu` and `features`.

    None when it can. Features with `-` are ignored. A `cpu` that is neither a level of the x86-64 ABI nor
    `generic` is rejected, since the features that its code uses beyond `features` are not known here.
    """
    levels: dict[str, Iterable[str]] = {**dict(LEVELS), "generic": ()}
    if cpu not in levels:
        return f"whether this CPU runs code for '{cpu}' is not known"
    required = {_KERNEL_NAMES.get(f.lstrip("+"), f.lstrip("+")) for f in features if not f.startswith("-")}
    lacking = sorted((required | set(levels[cpu])) - flags)
    return f"this CPU lacks {', '.join(lacking)}" if lacking else None


def machine() -> str:
    """The architecture of this machine, by Kiln's name for it where Kiln has one."""
    return _MACHINES.get(platform.machine(), platform.machine())


def obstacle(target: Target) -> str | None:
    """The reason why this machine cannot run the target's programs directly; None when it can."""
    system = target.system
    if platform.system() == "Linux" and "linux" not in target.triple and system.host == "Linux":
        return f"its programs are for {target.triple}"
    if platform.system() != system.host:
        return f"its programs are for {system.name}, and this machine runs {platform.system()}"
    return processor_obstacle(target)


def processor_obstacle(target: Target) -> str | None:
    """The reason why this machine's processor cannot execute the target's code; None when it can."""
    if machine() != target.arch:
        return f"its programs are for {target.arch}, this machine is {machine()}"
    return missing(target.cpu, target.features, read_flags())


def refusal(target: Target, reason: str) -> str:
    """An error in one line: the target's programs cannot run here, for a reason that `obstacle` gave."""
    hint = ", and it names no emulator"
    if target.system.host != "Linux" and platform.system() != target.system.host:
        hint = "; they are built and linked, not run"
    return f"target '{target.name}' cannot run here: {reason}{hint}"


def loads_foreign_libc(target: Target) -> bool:
    """Whether QEMU needs an option -L: the target's programs load the C library of another architecture.

    For Android it is glibc, on which the runner puts bionic's names. False where the user gives a -L or
    QEMU_LD_PREFIX.
    """
    emulator = target.emulator
    has_folder = emulator is None or "-L" in emulator.args or "QEMU_LD_PREFIX" in emulator.env
    native = machine() == target.arch
    own_loader = target.system.runner not in ("qemu_user", "bionic")
    return not (target.libc.static or has_folder or native or own_loader or "QEMU_LD_PREFIX" in os.environ)


def libc_of_programs(target: Target) -> str:
    """The C library with which the target's programs run on this machine; glibc in place of bionic."""
    return "glibc" if target.libc.name == "bionic" else target.libc.name
