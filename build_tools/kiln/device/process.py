"""Client programs of this machine (ssh, adb): run with a time limit, stopped with their child processes."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from kiln import packages
from kiln.device.deploy.transports import Answer
from kiln.errors import KilnError
from kiln.parent import end_with_parent


@functools.cache
def _killed_with_parent() -> tuple[str, ...]:
    """Words to put before a command so that the kernel kills it when this process ends; none without setpriv.

    With `preexec_fn`, Python would copy the page tables of this process, which has imported TVM: some 10 ms
    per command.
    """
    program = shutil.which("setpriv") if sys.platform == "linux" else None
    if program is None:
        return ()
    words = (program, "--pdeathsig", "KILL")  # busybox's has no such option
    tried = subprocess.run([*words, program, "--version"], capture_output=True, check=False)
    return words if tried.returncode == 0 else ()


def client(program: str) -> str:
    """Path of a client program. Raises KilnError, with the command that installs it, when it is missing."""
    path = shutil.which(program)
    if path is None:
        raise KilnError(packages.missing_program(program))
    return path


def run(
    command: Sequence[str],
    *,
    description: str,
    stdin: bytes | Path | None = None,
    timeout: float,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Answer:
    """Run a program to its end. `description` names the device in error messages.

    Raises KilnError when it cannot be started or is still running after `timeout` seconds.
    """
    variables = {**os.environ, **(environment or {})}
    # Only for programs of the system that are there: what cannot be started is an OSError of Popen, while
    # setpriv would give a damaged file to a shell.
    of_system = "/" not in command[0] and shutil.which(command[0], path=variables.get("PATH")) is not None
    words = _killed_with_parent() if of_system else ()
    with contextlib.ExitStack() as stack:
        input_stream = stack.enter_context(stdin.open("rb")) if isinstance(stdin, Path) else None
        try:
            process = subprocess.Popen(
                [*words, *command],
                cwd=cwd,
                env=variables,
                stdin=input_stream or (subprocess.PIPE if stdin is not None else subprocess.DEVNULL),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=None if words else end_with_parent,
            )
        except OSError as error:
            raise KilnError(f"{description}: cannot start {command[0]}: {error.strerror}") from error
        stack.enter_context(process)
        try:
            stdout, stderr = process.communicate(stdin if isinstance(stdin, bytes) else None, timeout)
        except subprocess.TimeoutExpired:
            stop(process)
            raise KilnError(
                f"{description}: no answer within {timeout:g} s; it hangs, is too slow or is no longer "
                "connected"
            ) from None
        except BaseException:
            stop(process)
            raise
    return Answer(process.returncode, stdout, stderr.decode("utf-8", "replace"))


def stop(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all processes of its session.

    Does not wait for the end of its output: ssh's shared connection holds the other ends of the pipes open as
    long as the command on the device runs.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    process.wait()
