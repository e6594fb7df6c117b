"""The one line for an exception that no stage foresaw; before it the traceback, where that is asked for."""

from __future__ import annotations

import argparse
import os
import sys
import traceback

from kiln.errors import KilnError

VARIABLE = "KILN_TRACEBACK"

# Options that say what a stage works on, the one that its user knows first.
_SUBJECTS = ("called", "source", "bundle", "config", "plan", "out")


def tell(stage: str, arguments: argparse.Namespace, error: BaseException) -> None:
    """Print the line on stderr; before it the traceback, with KILN_TRACEBACK set in the environment."""
    shown = bool(os.environ.get(VARIABLE))
    if shown:
        traceback.print_exception(error)
    hint = "" if shown else f" (a fault of Kiln; {VARIABLE}=1 in the environment shows where)"
    print(f"kiln: error: {line(stage, arguments, error)}{hint}", file=sys.stderr)


def line(stage: str, arguments: argparse.Namespace, error: BaseException) -> str:
    """The stage, what it worked on, and what was raised, on one line."""
    found = (getattr(arguments, name, None) for name in _SUBJECTS)
    subject = next((str(value) for value in found if value), "")
    reason = "out of memory" if isinstance(error, MemoryError) else f"{type(error).__name__}: {error}"
    lines = [part for part in reason.splitlines() if part.strip()]
    return str(KilnError(f"{stage}{f' of {subject}' if subject else ''}: {lines[0][:300]}"))
