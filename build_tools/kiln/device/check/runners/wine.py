"""Runs programs for Windows in Wine."""

from __future__ import annotations

from kiln.config import Target
from kiln.device.check.runners.local import LocalRunner, checked_emulator
from kiln.paths import cache_dir


def open_runner(target: Target) -> LocalRunner:
    """The runner of targets for Windows, with a Wine prefix of Kiln's own.

    Raises KilnError, with the command that installs Wine, when it is missing.
    """
    emulator, path = checked_emulator(target)
    prefix = cache_dir() / "wine"
    prefix.mkdir(parents=True, exist_ok=True)
    environment = {"WINEPREFIX": str(prefix.resolve()), **emulator.env}
    return LocalRunner(" ".join([emulator.command, *emulator.args]), [path, *emulator.args], environment)
