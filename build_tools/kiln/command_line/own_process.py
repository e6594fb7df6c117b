"""The command `kiln` in a process of its own, which ends with this one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from kiln.errors import KilnError
from kiln.stage import Stage

_STAGE = "from kiln.__main__ import main; sys.exit(main())"
_COMMAND = "from kiln.command_line.__main__ import main; sys.exit(main())"
_SECONDS_TO_END = 10


def kiln_program(words: Sequence[str]) -> list[str]:
    """The program and arguments that run the command `kiln` with the arguments `words`.

    The process imports this very package, also where it is not installed, and ends with this process.
    """
    return _program(_COMMAND, words)


def _program(command: str, words: Sequence[str]) -> list[str]:
    package = str(Path(__file__).resolve().parents[2])
    ends_with = f"import signal; from kiln.parent import end_with; end_with({os.getpid()}, signal.SIGTERM)"
    program = f"import sys; sys.path[0] = {package!r}; {ends_with}; {command}"
    return [sys.executable, "-c", program, *words]


def run_stage(stage: Stage) -> None:
    """Run a stage of a build in a process of its own. Raises KilnError with the reason where it fails."""
    name = stage.spec.name
    done = _finished(_program(_STAGE, [name, *stage.words()]), Path(), os.environ)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith("kiln: error: ")]
        crash = f"{name} ended with status {done.returncode}: {' '.join(done.stderr.split())[-300:]}"
        raise KilnError(lines[-1].removeprefix("kiln: error: ") if lines else crash)


def run_kiln(
    words: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run the command in `folder` with these variables, and collect its output.

    An exception, such as that of Ctrl-C, ends the process first, and with it the stages of its build.
    """
    return _finished(kiln_program(words), folder, environment)


def _finished(
    program: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """The program, run to its end; an exception ends it first."""
    with subprocess.Popen(
        program, cwd=folder, env=environment, text=True, errors="replace",
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
