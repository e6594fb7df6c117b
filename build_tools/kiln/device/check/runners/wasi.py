"""Runs WebAssembly programs for WASI in Node.js."""

from __future__ import annotations

from kiln.config import Target
from kiln.device.check.runners.local import LocalRunner, checked_emulator
from kiln.device.link import PROGRAMS


def open_runner(target: Target) -> LocalRunner:
    """The runner of targets for WebAssembly.

    Raises KilnError, with the command that installs Node.js, when it is missing.
    """
    emulator, path = checked_emulator(target)
    command = [path, "--no-warnings", *emulator.args, str(PROGRAMS / "run_wasi.mjs")]
    # WASI's files end at the folder: no link may lead out of it.
    return LocalRunner(" ".join([emulator.command, *emulator.args]), command, emulator.env, links=False)
