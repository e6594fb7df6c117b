"""Checks, before the first stage runs, that the system's programs and libraries are installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Collection, Sequence
from typing import NamedTuple

from SCons.Script import GetOption

from kiln import packages
from kiln.config import Device, Target
from kiln.device.check import host_cpu
from kiln.errors import KilnError
from kiln.toolchain import compiler_program

# The first part of a triple, by architecture: compilers and LLVM name its versions differently.
_ARCHITECTURE = re.compile(
    r"(?P<x86_64>x86_64|amd64)-|(?P<x86>i\d86)-|(?P<aarch64>aarch64|arm64)-|(?P<arm>arm|thumb)[^-]*-"
    r"|(?P<riscv32>riscv32)[^-]*-|(?P<riscv64>riscv64)[^-]*-"
)
_RUNNING = frozenset(("test", "run", "bench", "profile"))  # goals that run a target's programs


class Missing(NamedTuple):
    """A missing program or library, as text for an error message, and its Debian package if known."""

    description: str
    package: str | None


def check(targets: Sequence[Target], goals: Collection[str], device: Device | None = None) -> None:
    """Raise KilnError, in one line that names every program and package that the goals on `targets` lack.

    `device` is where programs run; None: here, under each target's emulator where this machine cannot run
    them. Nothing is checked where SCons only prints (`-n`) or removes (`-c`).
    """
    if GetOption("no_exec") or GetOption("clean"):
        return
    missing_packages = [missing for target in targets for missing in _missing_compiler(target)]
    if device is not None:
        missing_packages += _missing_for_device(device)
    elif not _RUNNING.isdisjoint(goals):
        missing_packages += [missing for target in targets for missing in _missing_for_runner(target)]
    if missing_packages:
        names = sorted({missing.package for missing in missing_packages if missing.package})
        how = f"; {packages.how_to_install(*names)}" if names else ""
        raise KilnError(
            f"not installed: {', '.join(dict.fromkeys(one.description for one in missing_packages))}{how}"
        )


def _missing_compiler(target: Target) -> list[Missing]:
    program = compiler_program(target)
    if shutil.which(program) is not None:
        _check_machine(target, program)
        return []
    return [
        Missing(
            f"C compiler '{program}' of target '{target.name}' (key 'c_compiler')",
            packages.package_of(program),
        )
    ]


def _check_machine(target: Target, program: str) -> None:
    """Raise KilnError if the system's own compiler, which no key chooses, is for another architecture."""
    compiler = target.c_compiler
    if compiler.kind == "zig" or compiler.command is not None or compiler.target is not None:
        return
    try:
        done = subprocess.run(
            [program, "-dumpmachine"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    except OSError:  # the first compilation says so
        return
    machine, expected = _ARCHITECTURE.match(done.stdout), _ARCHITECTURE.match(target.triple)
    if machine and expected and machine.lastgroup != expected.lastgroup:
        raise KilnError(
            f"target '{target.name}' is for {target.triple}, and '{program}' here compiles for "
            f"{done.stdout.strip()}: give the cross compiler in key 'c_compiler.command', such as "
            "[aarch64-linux-gnu-gcc], or compile with 'kind: zig', which compiles for every target"
        )


def _missing_for_runner(target: Target) -> list[Missing]:
    """Missing programs and libraries for running the programs of the target and of its variants here.

    A variant that neither this machine nor an emulator can run is not run.

    Raises KilnError where this machine cannot run the programs and the target names no emulator.
    """
    variants = [target.for_variant(variant.name) for variant in target.variants]
    of_variants = [
        missing
        for variant in variants
        if variant.emulator is not None
        for missing in _missing_for_runner(variant)
    ]
    obstacle = host_cpu.obstacle(target)
    if obstacle is None:
        return of_variants
    if target.emulator is None:
        raise KilnError(host_cpu.refusal(target, obstacle))
    missing_packages = of_variants
    command = target.emulator.command
    if shutil.which(command) is None:
        missing_packages.append(
            Missing(f"'{command}', which runs '{target.name}'", packages.package_of(command))
        )
    if host_cpu.loads_foreign_libc(target):
        folder, package = packages.cross_libc(target.arch, target.triple)
        if package is not None:
            missing_packages.append(
                Missing(f"{host_cpu.libc_of_programs(target)} for '{target.name}' in {folder}", package)
            )
    return missing_packages


def _missing_for_device(device: Device) -> list[Missing]:
    from kiln.device.deploy.transports import transport_modules  # only where a device is named

    programs = transport_modules()[str(device.transport.model_dump()["kind"])].PROGRAMS
    return [
        Missing(f"'{program}', which reaches device '{device.name}'", packages.package_of(program))
        for program in programs
        if shutil.which(program) is None
    ]
