"""The interface of the storages of a cache, and the parts that they share."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from kiln.errors import KilnError
from kiln.files import set_mode

FileEntries = Sequence[Mapping[str, Any]]  # name, sha256, bytes, executable of each file
_BLOCK = 1 << 20


class DamagedError(Exception):
    """An entry, or a file that the entry names, is missing or has changed since it was written."""


class StorageError(Exception):
    """The storage cannot be read or written; the text has the place and the reason."""


class Storage(ABC):
    """A place for contents by SHA-256, and for entries: lists of files by the key of a stage's run.

    Safe to use from several threads, and by several builds at a time: contents and entries are written
    completely or not at all.
    """

    text: str  # opens the same storage in another process: the argument of open_storage
    shown: str  # the place, without passwords

    @abstractmethod
    def entry(self, key: str) -> FileEntries:
        """The files of an entry. Raises DamagedError where it is missing or damaged."""

    @abstractmethod
    def put_entry(self, key: str, files: FileEntries) -> None:
        """Store an entry; the contents of its files are there already."""

    @abstractmethod
    def has(self, sha256: str) -> bool:
        """Whether a content is stored, as far as that is known without reading it."""

    @abstractmethod
    def get(self, sha256: str, out: Path) -> None:
        """Write a content to the new file `out`. Raises DamagedError where it is missing or differs."""

    @abstractmethod
    def put(self, path: Path, sha256: str) -> None:
        """Store the content of a file, whose SHA-256 is known."""

    def used(self, key: str, files: FileEntries) -> None:  # noqa: B027
        """Note that an entry was used, for programs that remove old ones."""


def digest_of_entry(files: FileEntries) -> str:
    """A digest of an entry's files, stored with them."""
    return hashlib.sha256(json.dumps(list(files), sort_keys=True).encode()).hexdigest()


def verified(files: Any, stored: object) -> FileEntries:
    """`files`, if their digest is `stored` and each has a valid SHA-256. Raises DamagedError otherwise."""
    try:
        good = digest_of_entry(files) == stored and all(
            isinstance(file["name"], str)
            and len(bytes.fromhex(file["sha256"])) == 32
            and isinstance(file["executable"], bool)
            for file in files
        )
    except (LookupError, TypeError, ValueError) as error:
        raise DamagedError from error
    if not good:
        raise DamagedError
    return list(files)


def receive(stream: BinaryIO, sha256: str, out: Path, shown: str) -> None:
    """Write a stream of the storage `shown` to the file `out`, which another process never sees in part.

    Raises DamagedError if the SHA-256 differs, StorageError where the stream cannot be read to its end, and
    KilnError where `out` cannot be written.
    """
    temporary: Path | None = None
    digest = hashlib.sha256()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{out.name}.", dir=out.parent)
        temporary = Path(name)
        with os.fdopen(handle, "wb") as target:
            for block in _blocks(stream, shown):
                digest.update(block)
                target.write(block)
            target.flush()
            os.fsync(target.fileno())
        if digest.hexdigest() != sha256:
            raise DamagedError(sha256)
        set_mode(temporary)
        temporary.replace(out)
        temporary = None
    except OSError as error:
        raise KilnError(f"{out}: cannot write: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _blocks(stream: BinaryIO, shown: str) -> Iterator[bytes]:
    """The content of a stream. Raises StorageError, such as where a connection ends."""
    try:
        while block := stream.read(_BLOCK):
            yield block
    except OSError as error:
        raise StorageError(f"{shown}: cannot be read: {error.strerror or error}") from error
