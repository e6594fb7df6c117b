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


def not_imported(error: ImportError) -> KilnError:
    """The error of a command that cannot import a library.

    Modules of folders in PYTHONPATH come before the libraries that Kiln is installed with: those of another
    version of Python, or a file that happens to have a library's name. Raises `error` itself where a module
    of Kiln is missing.
    """
    folder = _in_python_path(error)
    if folder is not None:
        return KilnError(
            f"{folder} of PYTHONPATH has modules that are imported in place of Kiln's libraries, and fail: "
            f"{error}; start Kiln without that folder, such as by env -u PYTHONPATH"
        )
    if isinstance(error, ModuleNotFoundError):
        return not_installed(error)
    name = (error.name or "a library").partition(".")[0]
    return KilnError(f"{name} is installed, but cannot be imported: {error}")


def _in_python_path(error: ImportError) -> str | None:
    """The folder of PYTHONPATH that has a module whose import failed; None without one."""
    files, trace = [error.path or ""], error.__traceback__
    while trace is not None:
        files.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    own = str(Path(__file__).parent)
    files = [file for file in files if not file.startswith(own + os.sep)]
    for folder in filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        if any(file.startswith(os.path.join(folder, "")) for file in files):
            return folder
    return None


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
