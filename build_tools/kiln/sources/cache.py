"""The user's cache of fetched files, addressed by SHA-256."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from kiln.errors import KilnError
from kiln.files import set_mode
from kiln.paths import cache_dir


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's content as lower-case hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def slot(sha256: str, name: str) -> Path:
    """Path in the cache for the content `sha256`; `name`: the file's name, whose suffix readers may check."""
    return cache_dir() / "files" / sha256[:2] / sha256 / name


def lookup(sha256: str, name: str) -> Path | None:
    """Path of the cached file, or None. The content is checked each time; a damaged file counts as absent."""
    path = slot(sha256, name)
    return path if path.is_file() and file_sha256(path) == sha256 else None


def keep(path: Path, sha256: str, name: str, origin: str) -> Path:
    """Copy a fetched file with the expected content into the cache; return its path there.

    Raises KilnError naming `origin` if the content's SHA-256 is not `sha256`, or if the cache cannot be
    written.
    """
    actual = file_sha256(path)
    if actual != sha256:
        raise KilnError(f"{origin}: SHA-256 is {actual}, expected {sha256}")
    cached = slot(sha256, name)
    copy(path, cached)
    return cached


def copy(source: Path, out: Path) -> None:
    """Copy a file of any size atomically: `out` is either complete or unchanged.

    Raises KilnError naming `out` if it cannot be written.
    """
    temporary: Path | None = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{out.name}.", dir=out.parent)
        temporary = Path(name)
        with os.fdopen(handle, "wb") as target, source.open("rb") as stream:
            shutil.copyfileobj(stream, target, 1 << 20)
            target.flush()
            os.fsync(target.fileno())
        set_mode(temporary)
        temporary.replace(out)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise KilnError(f"{out}: cannot write: {error.strerror}") from error
