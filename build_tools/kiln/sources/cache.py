"""The user's cache of fetched files, addressed by what is in them."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from kiln.errors import KilnError
from kiln.paths import cache_dir


def file_sha256(path: Path) -> str:
    """SHA-256 of a file as lower-case hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def slot(sha256: str, name: str) -> Path:
    """Where a file of this content is kept; `name` is its file name, for readers that look at suffixes."""
    return cache_dir() / "files" / sha256[:2] / sha256 / name


def lookup(sha256: str, name: str) -> Path | None:
    """The cached file, or None. A damaged file counts as absent: its content is checked every time."""
    path = slot(sha256, name)
    return path if path.is_file() and file_sha256(path) == sha256 else None


def keep(path: Path, sha256: str, name: str, origin: str) -> Path:
    """Copy a fetched file into the cache if its content is what was asked for.

    Raises KilnError naming `origin` when the content differs or the cache cannot be written.
    """
    found = file_sha256(path)
    if found != sha256:
        raise KilnError(f"{origin}: SHA-256 is {found}, expected {sha256}")
    place = slot(sha256, name)
    copy(path, place)
    return place


def copy(source: Path, out: Path) -> None:
    """Copy a file of any size so that `out` is the whole file or is not there.

    Raises KilnError naming `out` when it cannot be written.
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
        temporary.chmod(0o644)
        temporary.replace(out)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise KilnError(f"{out}: cannot write: {error.strerror}") from error
