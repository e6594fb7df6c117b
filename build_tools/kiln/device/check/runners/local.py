"""Runs programs as processes of this machine."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kiln import packages
from kiln.config import Target
from kiln.config.c_compiler import Emulator
from kiln.config.host import host_identity
from kiln.device.check.runners import Completed
from kiln.device.deploy.transports import StillRunningError
from kiln.errors import KilnError
from kiln.parent import end_with_parent
from kiln.scratch import scratch_folder


class LocalRunner:
    """Runs `prefix + [program]` in a temporary folder, which is removed afterwards.

    `links`: whether files are sent there as symbolic links rather than as copies.
    """

    def __init__(
        self, description: str, prefix: Sequence[str] = (), environment: Mapping[str, str] | None = None,
        *, links: bool = True,
    ) -> None:  # fmt: skip
        self._links = links
        self._description = description
        self._prefix = list(prefix)
        self._environment = dict(environment or {})

    unit = "ns"

    @property
    def description(self) -> str:
        """The runner as text for the user."""
        return self._description

    @property
    def identity(self) -> Mapping[str, Any]:
        """Name, clock rate and number of this machine's processors; empty for an emulator."""
        return {} if self._prefix else host_identity()

    def run(
        self,
        program: Path,
        arguments: Sequence[str],
        *,
        send: Mapping[str, Path],
        fetch: Mapping[str, Path],
        timeout: float,
    ) -> Completed:
        """See `kiln.device.check.runners.Runner.run`."""
        with scratch_folder("run") as folder:
            for name, source in send.items():
                if self._links:
                    Path(folder, name).symlink_to(source.resolve())
                else:
                    shutil.copyfile(source, Path(folder, name))
            done = self._start([str(program.resolve()), *arguments], folder, timeout)
            for name, destination in fetch.items():
                with contextlib.suppress(FileNotFoundError):
                    shutil.copyfile(Path(folder, name), destination)
        return done

    def _start(self, command: Sequence[str], folder: Path, timeout: float) -> Completed:
        began = time.monotonic()
        try:
            process = subprocess.Popen(
                [*self._prefix, *command],
                cwd=folder,
                env={**os.environ, **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        except OSError as error:
            raise KilnError(f"{self._description}: cannot start {command[0]}: {error.strerror}") from error
        with process:
            try:
                stdout, stderr = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                # Kill the whole session, so that no process that the program started outlives the limit.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                raise StillRunningError(
                    f"{self._description}: {Path(command[0]).name} was still running after its limit of "
                    f"{timeout:g} s and was stopped"
                ) from None
            except BaseException:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise
        if process.returncode < 0:
            raise self._killed(process.returncode, Path(command[0]).name, stderr)
        return Completed(process.returncode, stdout, stderr, time.monotonic() - began)

    def _killed(self, status: int, program: str, stderr: str) -> KilnError:
        """The error for a program that a signal ended, with its last line.

        An emulator whose own assertion fails ends by a signal too, whatever the program does.
        """
        own = _own_assertion(self._prefix, stderr)
        if own is not None:
            return KilnError(
                f"{self._description}: a fault of the emulator itself, not of {program}; a newer version of "
                f"it may have none: {own}"
            )
        return KilnError(
            f"{self._description}: {program} was killed by {signal_name(status)}{_last_line(stderr)}"
        )


def _own_assertion(command: Sequence[str], stderr: str) -> str | None:
    """The line of `stderr` in which the emulator that `command` begins with says that it has failed.

    None where it does not, and for an empty command. The C library's assert writes it with the name of the
    program: `qemu-riscv64: translate.c:213: decode_save_opc: Assertion `...' failed.`
    """
    if not command:
        return None
    begin = f"{Path(command[0]).name}: "
    lines = [line.strip() for line in stderr.splitlines()]
    return next((line for line in lines if line.startswith(begin) and ": Assertion `" in line), None)


def too_old(emulator: Emulator) -> str | None:
    """The reason why the installed version of an emulator cannot run the target's code.

    None if it can, if any version can, and if the emulator is not installed or does not report its version.
    """
    path = shutil.which(emulator.command)
    if emulator.since is None or path is None:
        return None
    version_output = subprocess.run(
        [path, "--version"], capture_output=True, text=True, errors="replace", check=False
    )
    match = re.search(r"\d+(\.\d+)+", version_output.stdout)
    if match is None or _numbers(match.group()) >= _numbers(emulator.since):
        return None
    return f"{emulator.command} is version {match.group()}, and {emulator.since} or later is needed"


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


def emulator_of(target: Target) -> tuple[Emulator, str]:
    """The target's emulator and the path of its program.

    Raises KilnError where the target names none, and with the command that installs it where it is missing.
    """
    emulator = target.emulator
    if emulator is None:
        raise KilnError(f"target '{target.name}': it names no emulator (key 'emulator')")
    path = shutil.which(emulator.command)
    if path is None:
        raise KilnError(f"target '{target.name}': its emulator {packages.missing_program(emulator.command)}")
    return emulator, path


def checked_emulator(target: Target) -> tuple[Emulator, str]:
    """The result of `emulator_of`. Raises KilnError also for an emulator older than its key `since`."""
    emulator, path = emulator_of(target)
    if (old := too_old(emulator)) is not None:
        raise KilnError(f"target '{target.name}': {old}")
    return emulator, path


def signal_name(status: int) -> str:
    """Name of the signal that killed a program, from subprocess's negative status."""
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"{name} (an instruction this CPU lacks)" if name == "SIGILL" else name


def _last_line(stderr: str) -> str:
    lines = stderr.strip().splitlines()
    return f": {lines[-1]}" if lines else ""


def open_runner(target: Target) -> LocalRunner:
    """The runner for targets whose code this machine's CPU can execute."""
    return LocalRunner("host CPU")
