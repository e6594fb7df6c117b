"""The command `kiln` in a process of its own, which ends with this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from kiln.parent import end_with_parent

_BEGINNING = "from kiln.command_line.own_process import end_with; end_with"
_COMMAND = "from kiln.command_line.__main__ import main; sys.exit(main())"
_SECONDS_TO_END = 10


def kiln_program(words: Sequence[str]) -> list[str]:
    """The program and arguments that run the command `kiln` with the arguments `words`.

    The process imports this very package, also where it is not installed, and ends with this process.
    """
    package = str(Path(__file__).resolve().parents[2])
    program = f"import sys; sys.path[0] = {package!r}; {_BEGINNING}({os.getpid()}); {_COMMAND}"
    return [sys.executable, "-c", program, *words]


def end_with(parent: int) -> None:
    """Have the system end this process by SIGTERM when the process `parent`, which started it, ends."""
    end_with_parent(signal.SIGTERM)
    if os.getppid() != parent:  # it has ended before
        os.kill(os.getpid(), signal.SIGTERM)


def run_kiln(
    words: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run the command in `folder` with these variables, and collect its output.

    An exception, such as that of Ctrl-C, ends the process first, and with it the stages of its build.
    """
    with subprocess.Popen(
        kiln_program(words), cwd=folder, env=environment, text=True, errors="replace",
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            output, errors = process.communicate()
        except BaseException:
            process.terminate()
            try:
                process.communicate(timeout=_SECONDS_TO_END)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)
