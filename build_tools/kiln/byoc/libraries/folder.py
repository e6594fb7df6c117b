"""Reads the output of the `library` stage, and makes the compiler and linker flags for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiln.files import read_json

LIST = "libraries.json"  # in a bundle's lib/


@dataclass(frozen=True)
class LibraryFolder:
    """An output folder of the `library` stage; `description` is the content of its library.json."""

    path: Path
    description: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> LibraryFolder:
        """Read the folder `path`. Raises KilnError if library.json cannot be read."""
        return cls(path, read_json(path / "library.json"))

    @property
    def compile_flags(self) -> list[str]:
        """Compiler flags for C that calls the library."""
        return [f"-I{self.path / 'include'}", *(f"-D{define}" for define in self.description["defines"])]

    @property
    def linked(self) -> list[Path]:
        """Files that a program which calls the library is linked with."""
        return [self.path / "lib" / name for name in self.description["link"]]


def bundled(folder: Path) -> list[dict[str, Any]]:
    """The entries of lib/libraries.json in a bundle or the link stage's folder; empty if there is no file."""
    path = folder / "lib" / LIST
    return list(read_json(path)["libraries"]) if path.is_file() else []


def link_flags(folder: Path) -> list[str]:
    """Linker flags for a program that uses a bundle's libraries.

    At run time the libraries are searched in the bundle's lib/ and next to the program.
    """
    files = [str(folder / "lib" / name) for about in bundled(folder) for name in about["link"]]
    return with_rpath(files, [str((folder / "lib").resolve()), "$ORIGIN"])


def with_rpath(files: Sequence[str], folders: Iterable[str]) -> list[str]:
    """Linker arguments for `files`; shared libraries are searched in the folders `folders` at run time."""
    if not any(".so" in Path(name).name for name in files):
        return list(files)
    # --allow-shlib-undefined: a library may need a newer C library than the oldest that the target allows.
    # --no-as-needed: DT_RUNPATH applies to direct dependencies only (ld.so(8)), so that a library needed only
    # by another library is found only if the program itself depends on it.
    flags = ["-Wl,--allow-shlib-undefined", "-Wl,--no-as-needed"]
    return [*flags, *files, *(f"-Wl,-rpath,{folder}" for folder in folders)]
