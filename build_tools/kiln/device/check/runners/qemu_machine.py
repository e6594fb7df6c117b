"""Runs programs without an operating system on a machine that QEMU emulates; the target's YAML names it.

The program's files are those of a folder of this machine, by semihosting. Time passes by instructions: one
nanosecond of the machine is one executed instruction, so that equal programs report equal times.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kiln.config import Target
from kiln.device.check.runners import Completed
from kiln.device.check.runners.local import LocalRunner, emulator_of

STDOUT, STDERR = "kiln-stdout", "kiln-stderr"  # files that programs/bare/bare.c writes
_QEMU = ("-display", "none", "-serial", "none", "-monitor", "none", "-icount", "shift=0")


class MachineRunner(LocalRunner):
    """Starts `command` with a program as its kernel, in a temporary folder."""

    unit = "instructions"

    def _start(self, command: Sequence[str], folder: str, timeout: float) -> Completed:
        program, *arguments = command
        words = ",".join(f"arg={word}" for word in (Path(program).name, *arguments))
        given = ["-semihosting-config", f"enable=on,target=native,{words}", "-kernel", program]
        done = super()._start(given, folder, timeout)
        stdout, stderr = (self._text(Path(folder, name)) for name in (STDOUT, STDERR))
        return Completed(done.status, stdout, stderr or done.stderr, done.seconds)

    @staticmethod
    def _text(path: Path) -> str:
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def open_runner(target: Target) -> MachineRunner:
    """The runner of freestanding targets, whose emulator is a QEMU of whole machines.

    Raises KilnError where the target names none, and with the command that installs it where it is missing.
    """
    emulator, path = emulator_of(target)
    description = " ".join([emulator.command, *emulator.args])
    return MachineRunner(description, [path, *emulator.args, *_QEMU], emulator.env)
