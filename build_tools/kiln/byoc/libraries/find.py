"""Locates a backend's library: in pinned packages, in a folder that the target names, or in the system."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kiln.byoc.backend import Backend, Deb, Library, Wheel
from kiln.config import Target
from kiln.errors import KilnError
from kiln.packages import DEBIAN_ARCH, how_to_install

# Debian's multiarch folders.
_FOLDERS = {
    "x86_64": "x86_64-linux-gnu",
    "aarch64": "aarch64-linux-gnu",
    "armv7": "arm-linux-gnueabihf",
}


@dataclass(frozen=True)
class Located:
    """Packages to fetch, or files to copy: `files` are (path in the library's folder, path of the file)."""

    wheels: tuple[Wheel, ...] = ()
    debs: tuple[Deb, ...] = ()
    files: tuple[tuple[str, Path], ...] = ()


def locate(backend: Backend, target: Target, root: Path = Path("/usr")) -> Located:
    """Locate the backend's library without fetching anything. `root`: where system libraries are searched.

    Raises KilnError, one line that names the missing files, the folder searched and how to get them.
    """
    library = backend.library
    named = target.libraries.get(backend.name, library.folder)
    packages = _packages(library, target.arch)
    if named is None and packages is not None:
        if target.libc.name != "glibc" or target.libc.static:
            raise KilnError(
                f"byoc: backend '{backend.name}' for target '{target.name}': the packages of {library.name} "
                f"have shared libraries for glibc, the target's C library is {_libc(target)}; "
                f"give a folder with its own: libraries: {{{backend.name}: …}}"
            )
        return packages
    base = Path(named) if named is not None else root
    if named is not None and not base.is_dir():
        raise KilnError(f"byoc: backend '{backend.name}' for target '{target.name}': no folder '{named}'")
    files, missing = [], []
    for kind, names in (("include", library.headers), ("lib", library.shared)):
        for name in names:
            path = _search(base, kind, name, target.arch, named is None)
            if path is None:
                missing.append(name)
            else:
                files.append((f"{kind}/{name}", path))
    if missing:
        hint = f"give its folder in the target's YAML: libraries: {{{backend.name}: …}}"
        if library.package and named is None:
            package = f"{library.package}:{DEBIAN_ARCH[target.arch]}"
            hint = f"{how_to_install(package)}, or {hint}"
        raise KilnError(
            f"byoc: backend '{backend.name}' for target '{target.name}': {library.name} is not installed: "
            f"no {', '.join(missing)} below {base}; {hint}"
        )
    return Located(files=tuple(files))


def _packages(library: Library, arch: str) -> Located | None:
    """The pinned packages of a library for an architecture; None if there are none."""
    wheels, debs = library.wheels.get(arch, ()), library.debs.get(arch, ())
    return Located(tuple(wheels), tuple(debs)) if wheels or debs else None


def _libc(target: Target) -> str:
    return f"a static {target.libc.name}" if target.libc.static else target.libc.name


def _search(base: Path, kind: str, name: str, arch: str, system: bool) -> Path | None:
    """Find a file below `base`; None if absent. `kind`: include or lib; `system`: `base` is the system's."""
    for folder in _folders(base, kind, arch, system):
        if (folder / name).exists():
            return (folder / name).resolve()
    return None


def _folders(base: Path, kind: str, arch: str, system: bool) -> Iterator[Path]:
    """The folders to search, in order."""
    multiarch = _FOLDERS[arch]
    roots = [base] if system else [base, base / "usr"]
    for root in roots:
        yield root / kind / multiarch
        # Variants of one library are in subfolders, such as openblas-pthread/.
        yield from sorted(path for path in root.joinpath(kind, multiarch).glob("*") if path.is_dir())
        if kind == "include" or not system:
            yield root / kind
