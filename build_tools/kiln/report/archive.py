"""Reads a static library: finds the object file that defines each function."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kiln.emit.object_symbols import symbols
from kiln.errors import KilnError

_MAGIC = b"!<arch>\n"
_HEADER = 60  # name 16, date 12, owner 6, group 6, mode 8, size 10, end 2


def function_members(path: Path) -> dict[str, str]:
    """Function name → name of its object in the archive `path`; the last object where local names are equal.

    Raises KilnError when the file is not an archive of objects.
    """
    found: dict[str, str] = {}
    try:
        for name, content in _members(path.read_bytes()):
            functions = [one.name for one in symbols(content) if one.defined and one.function]
            found.update(dict.fromkeys(functions, name))
    except (OSError, ValueError) as error:
        raise KilnError(f"{path}: cannot be read as a static library: {error}") from error
    return found


def _members(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the members of an archive in the GNU format; the member `//` holds long names."""
    if content[:8] != _MAGIC:
        raise ValueError("it does not begin as one")
    at, names = 8, b""
    while at + _HEADER <= len(content):
        header = content[at : at + _HEADER]
        label, size = header[:16].rstrip(b" "), int(header[48:58])
        body = content[at + _HEADER : at + _HEADER + size]
        if label == b"//":
            names = body
        elif label not in (b"/", b"/SYM64/"):
            if label[:1] == b"/":
                label = names[int(label[1:]) :].split(b"/\n", 1)[0]
            yield label.rstrip(b"/").decode(), body
        at += _HEADER + size + size % 2
