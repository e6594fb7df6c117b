"""Reports an unexpected exception of a stage or a command in one line; KILN_TRACEBACK adds its traceback."""

from __future__ import annotations

import os
import sys
import traceback

from kiln import limits
from kiln.errors import KilnError

VARIABLE = "KILN_TRACEBACK"

# Options that name the subject of a stage or command, those that a user knows best first.
_SUBJECTS = ("called", "name", "model", "source", "bundle", "config", "plan", "out")


def print_error_line(stage: str, arguments: object, error: BaseException) -> None:
    """Print the error line to stderr, after the traceback if KILN_TRACEBACK is set in the environment."""
    print(error_line(stage, arguments, error), file=sys.stderr)


def error_line(stage: str, arguments: object, error: BaseException) -> str:
    """The error line; prints the traceback to stderr if KILN_TRACEBACK is set in the environment."""
    shown = bool(os.environ.get(VARIABLE))
    if shown:
        traceback.print_exception(error)
    hint = "" if shown else f" (a fault of Kiln; {VARIABLE}=1 in the environment shows where)"
    hint = limits.shell_hint() or hint
    return f"kiln: error: {line(stage, arguments, error)}{hint}"


def line(stage: str, arguments: object, error: BaseException) -> str:
    """The error line: the stage, its subject (from its flags, `arguments`) and the exception."""
    values = (getattr(arguments, name, None) for name in _SUBJECTS)
    subject = next((str(value) for value in values if value), "")
    reason = "out of memory" if isinstance(error, MemoryError) else f"{type(error).__name__}: {error}"
    lines = [part for part in reason.splitlines() if part.strip()]
    return str(KilnError(f"{stage}{f' of {subject}' if subject else ''}: {lines[0][:300]}"))
