"""Runs WebAssembly programs for WASI in Node.js."""

from __future__ import annotations

import shutil

from kiln import packages
from kiln.config import Target
from kiln.device.check.runners.local import LocalRunner
from kiln.device.link import PROGRAMS
from kiln.errors import KilnError


def open_runner(target: Target) -> LocalRunner:
    """The runner of targets for WebAssembly.

    Raises KilnError, with the command that installs Node.js, when it is missing.
    """
    emulator = target.emulator
    if emulator is None:
        raise KilnError(f"target '{target.name}': it names no emulator (key 'emulator')")
    path = shutil.which(emulator.command)
    if path is None:
        raise KilnError(f"target '{target.name}': its emulator {packages.missing_program(emulator.command)}")
    command = [path, "--no-warnings", *emulator.args, str(PROGRAMS / "run_wasi.mjs")]
    # WASI's files end at the folder: no link may lead out of it.
    return LocalRunner(" ".join([emulator.command, *emulator.args]), command, emulator.env, links=False)
