"""Reads a static library: finds the object file that defines each function."""

from __future__ import annotations

from pathlib import Path

from kiln.emit.archive_members import members
from kiln.emit.object_symbols import symbols
from kiln.errors import KilnError


def function_members(path: Path) -> dict[str, str]:
    """Function name → name of its object in the archive `path`; the last object where local names are equal.

    Raises KilnError when the file is not an archive of objects.
    """
    object_of: dict[str, str] = {}
    try:
        archive = path.read_bytes()
        for name, begin, size in members(archive):
            content = archive[begin : begin + size]
            functions = [symbol.name for symbol in symbols(content) if symbol.defined and symbol.function]
            object_of.update(dict.fromkeys(functions, name))
    except (OSError, ValueError) as error:
        raise KilnError(f"{path}: cannot be read as a static library: {error}") from error
    return object_of
