"""The one exception that a user sees, always as a single line."""

import os
import sys
from pathlib import Path
from typing import Any
from unicodedata import category

MOST_CHARACTERS = 2000
INTERRUPTED = "kiln: interrupted"  # printed after Ctrl-C
_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))  # Unicode's categories


class KilnError(Exception):
    """An error caused by the user's input or system.

    The message is one line that names the file, key or axis at fault, the actual value and the allowed
    values. Programs print it as ``kiln: error: …`` and exit with status 2. As a message may quote names from
    untrusted files, control characters are escaped, and the message is cut after `MOST_CHARACTERS`.
    """

    def __init__(self, message: str) -> None:
        text = printable(" ".join(message.split()))
        super().__init__(text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…")


def printable(text: str) -> str:
    """`text` with control characters, bidirectional marks and lone surrogates escaped as `\\uXXXX`."""
    if text.isprintable():
        return text
    return "".join(f"\\u{ord(char):04x}" if category(char) in _HIDDEN else char for char in text)


def path_of(value: Any, subject: str, example: str) -> Path:
    """The path that a caller of the Python module gives. Raises KilnError for anything else."""
    if (
        isinstance(value, (str, os.PathLike))
        and isinstance(text := os.fspath(value), str)
        and "\0" not in text
    ):
        return Path(text)
    given = repr(value) if isinstance(value, (str, bytes)) else f"of type {type(value).__name__}"
    raise KilnError(f"{subject} {given}: a path is expected, such as {example}")


def not_installed(error: ModuleNotFoundError) -> KilnError:
    """The error of a command where Kiln is installed without its dependencies, so that it only runs bundles.

    Raises `error` itself where a module of Kiln is missing.
    """
    package = (error.name or "").partition(".")[0]
    if package in ("", "kiln"):
        raise error
    return KilnError(
        f"not installed: the package '{package}', without which bundles run (kiln.load), but no build; "
        f"install all that Kiln needs with: {sys.executable} -m pip install kiln-build"
    )
