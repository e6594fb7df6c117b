"""Copies files to a device: only contents that the device lacks, each checked on the device.

Each file is copied under its SHA-256 as its name, and is kept when the device computes this hash for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kiln.device.deploy import script
from kiln.device.deploy.transports import TIMEOUT, Transport
from kiln.errors import KilnError
from kiln.sources.cache import file_sha256

READ = 5_000_000  # assumed rate, bytes per second, at which a slow device reads its files; for time limits
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class File:
    """One file of a version: its name on the device, the local file, and the content's hash and size."""

    name: str
    source: Path
    sha256: str
    bytes: int
    executable: bool = False


def file_of(name: str, source: Path, executable: bool = False) -> File:
    """Hash `source` as a file of a version; `name` is its path in the version's folder.

    Raises KilnError for a name that could leave the folder, and where `source` cannot be read.
    """
    folders = name.split("/")
    if any(folder in ("", ".", "..") for folder in folders) or not name.isprintable() or name != name.strip():
        raise KilnError(f"file name {name!r}: cannot be used on a device")
    try:
        return File(name, source, file_sha256(source), source.stat().st_size, executable)
    except OSError as error:
        raise KilnError(f"{source}: cannot read: {error.strerror}") from error


class Copies:
    """The contents of files on a device, stored below `root`.

    `present` is the set of SHA-256 of the contents on the device; None before it was read. `moved` is the
    number of bytes sent.
    """

    def __init__(self, transport: Transport, root: str, token: str, checksum: str) -> None:
        self._transport, self._root, self._token, self._checksum = transport, root, token, checksum
        self.present: set[str] | None = None
        self.moved = 0

    def put(self, files: Iterable[File]) -> None:
        """Copy the contents that the device lacks; the device compares each with its SHA-256.

        Raises KilnError when a file arrives damaged twice.
        """
        assert self.present is not None
        missing = {file.sha256: file for file in files if file.sha256 not in self.present}
        for attempt in range(2):
            if missing:
                self._copy(missing)
                self.present |= set(self._adopt(missing))
                missing = {digest: file for digest, file in missing.items() if digest not in self.present}
            if missing and attempt:
                name = next(iter(missing.values())).name
                raise KilnError(
                    f"{self._transport.description}: {name} arrived damaged, twice: check cable and memory"
                )

    def _copy(self, files: Mapping[str, File]) -> None:
        """Send files, by SHA-256, to the folder for unchecked contents."""
        script.run(self._transport, "incoming", self._root, self._token)
        folder = f"{self._root}/.kiln/incoming/{self._token}"
        self.moved += sum(file.bytes for file in files.values())
        self._transport.send({f"{folder}/{digest}": file.source for digest, file in files.items()})

    def _adopt(self, files: Mapping[str, File]) -> Iterator[str]:
        limit = TIMEOUT + sum(file.bytes for file in files.values()) / READ
        done = script.run(self._transport, "adopt", self._root, self._token, self._checksum, timeout=limit)
        for line in done.splitlines():
            key, _, digest = line.partition("\t")
            if key == "blob" and digest in files:
                yield digest

    def forget(self, digests: Iterable[str]) -> None:
        """Remove damaged contents from the device, by their SHA-256."""
        wrong = [digest for digest in digests if _SHA256.fullmatch(digest)]
        if wrong and self.present is not None:
            self.present.difference_update(wrong)
            self._transport.run(["rm", "-f", *(f"{self._root}/.kiln/blobs/{digest}" for digest in wrong)])
