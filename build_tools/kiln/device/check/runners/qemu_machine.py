"""Runs programs without an operating system on a machine that QEMU emulates; the target's YAML names it.

The program's files are those of a folder of this machine, by semihosting. Time passes by instructions: one
nanosecond of the machine is one executed instruction, so that equal programs report equal times.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kiln.config import Target
from kiln.device.check.runners import Completed
from kiln.device.check.runners.local import LocalRunner, checked_emulator
from kiln.device.check.runners.machine_faults import cause_in_words, fatal_line, missing_memory
from kiln.errors import KilnError

STDOUT, STDERR = "kiln-stdout", "kiln-stderr"  # files that programs/bare/bare.c writes
_QEMU = ("-display", "none", "-serial", "none", "-monitor", "none", "-icount", "shift=0")


class MachineRunner(LocalRunner):
    """Starts a machine of `target` by `command` with a program as its kernel, in a temporary folder."""

    unit = "instructions"

    def __init__(self, target: Target, path: str) -> None:
        assert target.emulator is not None
        self._target, self._machine = target, [path, *target.emulator.args]
        description = " ".join([target.emulator.command, *target.emulator.args])
        super().__init__(description, [*self._machine, *_QEMU], target.emulator.env)

    def _start(self, command: Sequence[str], folder: Path, timeout: float) -> Completed:
        missing = missing_memory(self._target, self._machine)  # without memory a program may never end
        if missing:
            raise KilnError(f"target '{self._target.name}': {self._description}: {missing}")
        program, *arguments = command
        words = ",".join(f"arg={word}" for word in (Path(program).name, *arguments))
        options = ["-semihosting-config", f"enable=on,target=native,{words}", "-kernel", program]
        done = super()._start(options, folder, timeout)
        stdout, stderr = (self._text(Path(folder, name)) for name in (STDOUT, STDERR))
        if done.status != 0:
            stderr = self._explained(stderr or fatal_line(done.stderr))
        return Completed(done.status, stdout, stderr or done.stderr, done.seconds)

    def _killed(self, status: int, program: str, stderr: str) -> KilnError:
        return super()._killed(status, Path(self._machine[0]).name, self._explained(fatal_line(stderr)))

    def _explained(self, words: str) -> str:
        """The last output of a program that failed, and the cause in words."""
        more = cause_in_words(self._target.arch, words)
        return f"{words.rstrip()}: {more}" if more else words

    @staticmethod
    def _text(path: Path) -> str:
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def open_runner(target: Target) -> MachineRunner:
    """The runner of freestanding targets, whose emulator is a QEMU of whole machines.

    Raises KilnError where the target names none, and with the command that installs it where it is missing.
    """
    return MachineRunner(target, checked_emulator(target)[1])
