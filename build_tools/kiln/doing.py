"""What a process does in a library that may end it by a signal: a line for whoever reports its end.

A signal leaves no exception behind. So before a library of others runs a user's model, the process writes
what it does to a descriptor that its parent reads: a stage to stderr, a command to a file in memory.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

VARIABLE = "KILN_DOING"  # in the environment of a stage, whose stderr the build reads
_BEGINNING = "kiln: doing: "
_SEPARATOR = " | "
_descriptor: int | None = None


@contextlib.contextmanager
def noted(text: str, remedy: str = "") -> Iterator[None]:
    """Write what this process does inside the block; no effect in a process whose end nobody reports.

    `text`: in the past tense, such as `LiteRT ran the model`. `remedy`: what helps if that ends the process.
    """
    _write(f"{text}{_SEPARATOR}{remedy}")
    try:
        yield
    finally:
        _write(_SEPARATOR)


def write_to(descriptor: int) -> None:
    """Have this process write to `descriptor`."""
    global _descriptor
    _descriptor = descriptor


def _write(text: str) -> None:
    descriptor = 2 if _descriptor is None and VARIABLE in os.environ else _descriptor
    if descriptor is not None:
        with contextlib.suppress(OSError):  # a reader that has ended reports nothing
            os.write(descriptor, f"{_BEGINNING}{text}\n".encode())


def is_note(line: str) -> bool:
    """Whether a line is one that `noted` has written."""
    return line.startswith(_BEGINNING)


def last(lines: Sequence[str]) -> tuple[str, str]:
    """` while …`, from the last note if its block had not ended, and its remedy; both may be empty."""
    note = next((line for line in reversed(lines) if is_note(line)), _BEGINNING)
    text, _, remedy = note.removeprefix(_BEGINNING).partition(_SEPARATOR)
    return f" while {text}" if text else "", remedy
