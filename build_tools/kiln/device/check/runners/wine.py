"""Runs programs for Windows in Wine."""

from __future__ import annotations

import shutil

from kiln import packages
from kiln.config import Target
from kiln.device.check.runners.local import LocalRunner
from kiln.errors import KilnError
from kiln.paths import cache_dir


def open_runner(target: Target) -> LocalRunner:
    """The runner of targets for Windows, with a Wine prefix of Kiln's own.

    Raises KilnError, with the command that installs Wine, when it is missing.
    """
    emulator = target.emulator
    if emulator is None:
        raise KilnError(f"target '{target.name}': it names no emulator (key 'emulator')")
    path = shutil.which(emulator.command)
    if path is None:
        raise KilnError(f"target '{target.name}': its emulator {packages.missing_program(emulator.command)}")
    prefix = cache_dir() / "wine"
    prefix.mkdir(parents=True, exist_ok=True)
    environment = {"WINEPREFIX": str(prefix.resolve()), **emulator.env}
    return LocalRunner(" ".join([emulator.command, *emulator.args]), [path, *emulator.args], environment)
