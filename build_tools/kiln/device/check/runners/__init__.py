"""Runners execute a target's programs. Each module is one kind, with `open_runner(target) -> Runner`.

A runner gets a program, files to place next to it, and the names of the files to copy back. Nothing else
passes between the two sides, so a runner may be a local process, an emulator, or a remote machine.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from kiln.config import Target
from kiln.device.check import host_cpu
from kiln.errors import KilnError


@dataclass(frozen=True)
class Completed:
    """How a program ended: `status` is its exit status, `seconds` the wall time of the run."""

    status: int
    stdout: str
    stderr: str
    seconds: float


def shown_time(nanoseconds: float, unit: str) -> str:
    """A time of a runner's programs as text, from nanoseconds of their clock and the runner's `unit`."""
    if unit == "ns":
        return f"{nanoseconds / 1e6:.1f} ms"
    return f"{nanoseconds:,.0f} {unit}" if unit else "not timed"


class Runner(Protocol):
    """One way to run the programs of one target."""

    @property
    def description(self) -> str:
        """The runner as text for the user: `host CPU`, `qemu-arm -cpu cortex-a9`."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """The current state of the device, stored with measurements: CPU, governor, temperature.

        Empty where there is no device.
        """

    @property
    def unit(self) -> str:
        """Unit of a nanosecond in the programs' clock: `ns`, `instructions` if emulated; empty: unknown."""

    def run(
        self,
        program: Path,
        arguments: Sequence[str],
        *,
        send: Mapping[str, Path],
        fetch: Mapping[str, Path],
        timeout: float,
    ) -> Completed:
        """Run `program` in an empty folder that holds the files of `send` (name there → file here).

        Afterwards the files named in `fetch` (name there → file here) are copied back; files that the program
        did not write are skipped. Raises KilnError when the program cannot be started, is killed by a signal,
        or is still running after `timeout` seconds.
        """


def open_runner(name: str, target: Target) -> Runner:
    """The runner of the module `name` of this package. Raises KilnError when it cannot run the target."""
    module = importlib.import_module(f"{__name__}.{name}")
    return cast(Runner, module.open_runner(target))


def runner_for(target: Target) -> Runner:
    """The default runner of a target: this machine when its CPU can run it, else the target's emulator.

    Raises KilnError, with what the CPU lacks, when neither can.
    """
    obstacle = host_cpu.obstacle(target)
    if obstacle is None:
        return open_runner("local", target)
    if target.emulator is not None:
        return open_runner(target.system.runner, target)
    raise KilnError(host_cpu.refusal(target, obstacle))
