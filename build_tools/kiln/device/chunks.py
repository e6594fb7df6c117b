"""Files sent as what changed in them: cut where their content says so, so that equal parts are found again.

A file is cut after those bytes at which a hash of the last 32 bytes has its upper bits all zero. So a
change, or something put in, moves the cuts next to it and no others. A device keeps, beside a large file,
the list of its chunks; the host cuts the new file, sends the chunks that no file there has, and the device
puts the file together from these and from parts of its own files. Whatever goes wrong on the way, the whole
file's SHA-256 tells, and it is sent whole.

Source of the hash (Gear) and of cutting by it: Xia et al., "FastCDC: a Fast and Efficient Content-Defined
Chunking Approach for Data Deduplication", USENIX ATC 2016.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np

WORTHWHILE = 16 << 10  # bytes of a file below which it is sent whole
# Bits that have to be zero, by the file's size: one byte in 1 KiB ends a chunk, of larger files fewer, so
# that their lists stay short beside them.
_BITS = {4 << 20: 10, 64 << 20: 12}
_BITS_BEYOND = 14
_WINDOW = 32  # bytes that reach into the hash
_BLOCK = 4 << 20  # bytes of a file in memory at a time
_PARTS = 1000  # a device starts two programs for each
_LITERAL = "pieces"  # the file of chunks that are sent
_LINE = re.compile(r"([0-9a-f]{16}) ([1-9][0-9]{0,7})")

# One random word for each byte. All hosts must cut alike, so it comes from a hash.
_GEAR = np.array(
    [int.from_bytes(hashlib.sha256(bytes([byte])).digest()[:4], "little") for byte in range(256)], np.uint32
)


class Sendable(Protocol):
    """What of a `store.File` is needed here."""

    @property
    def name(self) -> str: ...
    @property
    def source(self) -> Path: ...
    @property
    def sha256(self) -> str: ...
    @property
    def bytes(self) -> int: ...


@dataclass(frozen=True)
class Chunk:
    """A part of a file: the first 64 bits of its SHA-256, which find it; the whole file's hash proves it."""

    digest: str
    bytes: int


@dataclass(frozen=True)
class Part:
    """`bytes` bytes from `start` on of a file that the device has, by its SHA-256, or of the sent pieces."""

    source: str
    start: int
    bytes: int


@dataclass
class Parcel:
    """What is to be sent: whole files, and how others are put together after that, in this order."""

    whole: list[Sendable] = field(default_factory=list)
    made: list[tuple[Sendable, list[Part]]] = field(default_factory=list)
    chunks: dict[str, list[Chunk]] = field(default_factory=dict)  # of all large ones, by SHA-256


def cut(path: Path) -> list[Chunk]:
    """The chunks of a file, in order."""
    found, kept = [], bytearray()
    size = path.stat().st_size
    bits = next((bits for most, bits in _BITS.items() if size < most), _BITS_BEYOND)
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            kept += block
            at = 0
            for end in _ends(kept, bits):
                found.append(_chunk(kept[at:end]))
                at = end
            del kept[:at]
    if kept:
        found.append(_chunk(kept))
    return found


def _ends(content: bytearray, bits: int) -> Iterator[int]:
    """Where the chunks of `content` end that are sure to, whatever follows it."""
    least, most = 1 << (bits - 2), 1 << (bits + 2)  # bytes of a chunk
    sums = _GEAR[np.frombuffer(content, np.uint8)]
    reach = 1
    while reach < _WINDOW:  # each round, a word's sum takes in as many bytes again
        longer = sums.copy()
        longer[reach:] += sums[:-reach] << np.uint32(reach)
        sums, reach = longer, 2 * reach
    begin = 0
    for end in (np.flatnonzero(sums >> np.uint32(32 - bits) == 0) + 1).tolist():
        while end - begin > most:
            begin += most
            yield begin
        if end - begin >= least:
            begin = end
            yield begin
    while len(content) - begin > most:
        begin += most
        yield begin


def _chunk(content: bytes | bytearray) -> Chunk:
    return Chunk(hashlib.sha256(content).hexdigest()[:16], len(content))


def kind_of(name: str) -> str:
    """What a file is the next version of: its name, without the hash at the end of a linked program's."""
    return re.sub(r"-[0-9a-f]{16}$", "", name)


def write_list(kind: str, chunks: Sequence[Chunk]) -> str:
    """The list as a device keeps it: the file's kind, and a line for each chunk."""
    return "".join([f"{kind}\n", *(f"{chunk.digest} {chunk.bytes}\n" for chunk in chunks)])


def read_list(lines: Iterable[str]) -> list[Chunk]:
    """The chunks of a list without its first line; none where the device gives something else."""
    matches = [_LINE.fullmatch(line) for line in lines]
    return [Chunk(match[1], int(match[2])) for match in matches if match] if all(matches) else []


def pack(files: Iterable[Sendable], there: Mapping[str, Sequence[Chunk]] | None, literal: BinaryIO) -> Parcel:
    """Decide how to send `files` to a device that has the files `there` (SHA-256 → chunks).

    Chunks that have to be sent by themselves are written to `literal`. None: all are sent whole.
    """
    parcel, known = Parcel(), _Known()
    for digest, chunks in (there or {}).items():
        known.add(digest, chunks)
    for file in sorted(files, key=lambda file: (-file.bytes, file.name)):
        if file.bytes < WORTHWHILE:
            parcel.whole.append(file)
            continue
        chunks = parcel.chunks[file.sha256] = cut(file.source)
        parts = known.parts(chunks, literal.tell())
        sent = sum(part.bytes for part in parts if part.source == _LITERAL)
        if there is None or len(parts) > _PARTS or sent > file.bytes * 3 // 4:
            parcel.whole.append(file)
        else:
            parcel.made.append((file, parts))
            _copy_literal(file.source, parts, literal)
        known.add(file.sha256, chunks)
    return parcel


class _Known:
    """Where each chunk is found on the device."""

    def __init__(self) -> None:
        self._first: dict[Chunk, tuple[str, int]] = {}
        self._at: dict[tuple[str, int], Chunk] = {}

    def add(self, digest: str, chunks: Iterable[Chunk]) -> None:
        at = 0
        for chunk in chunks:
            self._first.setdefault(chunk, (digest, at))
            self._at[digest, at] = chunk
            at += chunk.bytes

    def parts(self, chunks: Iterable[Chunk], sent: int) -> list[Part]:
        """As few parts as go on where the one before ends; what is unknown will be at `sent` and after."""
        parts: list[Part] = []
        for chunk in chunks:
            before = parts[-1] if parts else Part("", 0, 0)
            follows = (before.source, before.start + before.bytes)
            known = self._first.get(chunk, (_LITERAL, sent))
            place = follows if self._at.get(follows) == chunk else known
            if place[0] == _LITERAL:
                sent += chunk.bytes
            if place == follows:
                parts[-1] = Part(before.source, before.start, before.bytes + chunk.bytes)
            else:
                parts.append(Part(*place, chunk.bytes))
        return parts


def _copy_literal(source: Path, parts: Iterable[Part], literal: BinaryIO) -> None:
    at = 0
    with source.open("rb") as stream:
        for part in parts:
            if part.source == _LITERAL:
                stream.seek(at)
                for done in range(0, part.bytes, _BLOCK):
                    literal.write(stream.read(min(_BLOCK, part.bytes - done)))
            at += part.bytes
