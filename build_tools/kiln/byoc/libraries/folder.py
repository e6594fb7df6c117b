"""Folders of libraries as the stages after `library` read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiln.files import read_json

LIST = "libraries.json"  # in a bundle's lib/


@dataclass(frozen=True)
class LibraryFolder:
    """One folder of the `library` stage, and what its library.json says."""

    path: Path
    about: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> LibraryFolder:
        return cls(path, read_json(path / "library.json"))

    @property
    def compile_flags(self) -> list[str]:
        """What C that calls it is compiled with."""
        return [f"-I{self.path / 'include'}", *(f"-D{define}" for define in self.about["defines"])]

    @property
    def linked(self) -> list[Path]:
        """What a program that calls it is linked with."""
        return [self.path / "lib" / name for name in self.about["link"]]


def bundled(folder: Path) -> list[dict[str, Any]]:
    """The libraries of a bundle, or of the link stage's folder; none for most."""
    path = folder / "lib" / LIST
    return list(read_json(path)["libraries"]) if path.is_file() else []


def link_flags(folder: Path) -> list[str]:
    """How a program is linked with the libraries of a bundle, to be found there and beside it."""
    files = [str(folder / "lib" / name) for about in bundled(folder) for name in about["link"]]
    return with_rpath(files, [str((folder / "lib").resolve()), "$ORIGIN"])


def with_rpath(files: Sequence[str], places: Iterable[str]) -> list[str]:
    """Libraries to link; shared ones are looked for in `places` when the program starts."""
    if not any(".so" in Path(name).name for name in files):
        return list(files)
    # A library may have been built for a newer C library than the oldest that the target allows. And one
    # that only other libraries need is found only where the program itself needs it (ld.so(8), DT_RUNPATH).
    flags = ["-Wl,--allow-shlib-undefined", "-Wl,--no-as-needed"]
    return [*flags, *files, *(f"-Wl,-rpath,{place}" for place in places)]
