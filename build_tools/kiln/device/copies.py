"""Contents on their way to a device: what it lacks, whole or as the chunks that are new, checked there.

Each file is copied under its SHA-256 as its name, and is taken over when the device computes the same.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kiln.device import chunks, script
from kiln.device.transports import TIMEOUT, Transport
from kiln.errors import KilnError

READ = 5_000_000  # bytes a second that a slow device is given to read back what it has
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class File:
    """One file of a version: its name there, and the file here with its content's hash."""

    name: str
    source: Path
    sha256: str
    bytes: int
    executable: bool = False


def file_of(name: str, source: Path, executable: bool = False) -> File:
    """`source` as a version's file. Raises KilnError for a name that could leave the version's folder."""
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts) or not name.isprintable() or name != name.strip():
        raise KilnError(f"file name {name!r}: cannot be used on a device")
    digest, size = hashlib.sha256(), 0
    try:
        with source.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
                size += len(block)
    except OSError as error:
        raise KilnError(f"{source}: cannot read: {error.strerror}") from error
    return File(name, source, digest.hexdigest(), size, executable)


class Copies:
    """The contents below `root`.

    `present` are those there, by SHA-256; None before anybody has asked. `kinds` are those whose chunks are
    known. `moved` counts the bytes sent, `made` those of files that were put together there.
    """

    def __init__(self, transport: Transport, root: str, token: str, checksum: str) -> None:
        self._transport, self._root, self._token, self._checksum = transport, root, token, checksum
        self.present: set[str] | None = None
        self.kinds: dict[str, str] = {}
        self.moved, self.made = 0, 0

    def put(self, files: Iterable[File]) -> None:
        """Copy the contents that the device lacks, and have it compare each with its SHA-256.

        Of a large file whose version before is there, only the chunks are copied that are new.
        """
        assert self.present is not None
        present = self.present
        missing = {file.sha256: file for file in files if file.sha256 not in present}
        for attempt in range(2):
            if missing:
                made = self._copy(missing, whole=attempt > 0)
                arrived = set(self._adopt(missing))
                present |= arrived
                self.made += sum(missing[digest].bytes for digest in arrived & made)
                missing = {digest: file for digest, file in missing.items() if digest not in present}
            if missing and attempt:
                name = next(iter(missing.values())).name
                raise KilnError(
                    f"{self._transport.description}: {name} arrived damaged, twice: check cable and memory"
                )

    def _copy(self, files: Mapping[str, File], whole: bool) -> set[str]:
        """Bring files there, unchecked: whole, or as the parts that are new; which are the latter."""
        folder = f"{self._root}/.kiln/incoming/{self._token}"
        script.run(self._transport, "incoming", self._root, self._token)
        with tempfile.TemporaryDirectory(prefix="kiln-chunks-") as place:
            literal = Path(place, "pieces")
            with literal.open("wb") as stream:
                there = None if whole else self._chunks(files.values())
                parcel = chunks.pack(files.values(), there, stream)
            sent = {f"{folder}/{file.sha256}": file.source for file in parcel.whole}
            for digest, found in parcel.chunks.items():
                path = Path(place, digest)
                path.write_text(chunks.write_list(chunks.kind_of(files[digest].name), found), "utf-8")
                sent[f"{folder}/{digest}.chunks"] = path
            if parcel.made:
                sent[f"{folder}/pieces"] = literal
            self.moved += sum(path.stat().st_size for path in sent.values())
            self._transport.send(sent)
        if parcel.made:
            self._assemble(parcel)
        return {file.sha256 for file, _ in parcel.made}

    def _chunks(self, files: Iterable[File]) -> dict[str, list[chunks.Chunk]]:
        """Chunks of those files there that could be versions before of `files`, by SHA-256."""
        kinds = {chunks.kind_of(file.name) for file in files if file.bytes >= chunks.WORTHWHILE}
        wanted = sorted(digest for digest, kind in self.kinds.items() if kind in kinds)
        if not wanted:
            return {}
        said = script.run(self._transport, "chunks", self._root, lines=wanted)
        found = {}
        for part in f"\n{said}".split("\n=")[1:]:
            digest, _, *lines = part.rstrip("\n").split("\n")
            if digest in wanted:
                found[digest] = chunks.read_list(lines)
        return found

    def _assemble(self, parcel: chunks.Parcel) -> None:
        """Have files put together. Where that fails they are missing afterwards, and are sent whole."""
        lines, total = [], 0
        for file, parts in parcel.made:
            lines += [f"{part.source} {part.start + 1} {part.bytes}" for part in parts]
            lines.append(f"= {file.sha256}")
            total += file.bytes
        limit = TIMEOUT + len(lines) + total / READ
        script.attempt(self._transport, "assemble", self._root, self._token, lines=lines, timeout=limit)

    def _adopt(self, files: Mapping[str, File]) -> Iterator[str]:
        limit = TIMEOUT + sum(file.bytes for file in files.values()) / READ
        done = script.run(self._transport, "adopt", self._root, self._token, self._checksum, timeout=limit)
        for line in done.splitlines():
            key, _, digest = line.partition("\t")
            if key == "blob" and digest in files:
                yield digest

    def forget(self, digests: Iterable[str]) -> None:
        """Remove contents that are damaged."""
        wrong = [digest for digest in digests if _SHA256.fullmatch(digest)]
        if wrong and self.present is not None:
            self.present.difference_update(wrong)
            for digest in wrong:
                self.kinds.pop(digest, None)
            places = [
                f"{self._root}/.kiln/{kind}/{digest}" for digest in wrong for kind in ("blobs", "chunks")
            ]
            self._transport.run(["rm", "-f", *places])
