"""The file of an image: its header, as runtime_c/include/kiln_image.h describes it, and its version."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from kiln.errors import KilnError

HEADER_BYTES = 256
RECORD_BYTES = 176  # of a signature, after the image; zeros without one
MAGIC = b"KILNIMG1"
FORMAT = 1
MOST_VERSION = 2**63 - 1
_MOST_BYTES = 2**31
_NAME = struct.Struct("<64s")
_NUMBERS = struct.Struct("<8sIIIIQQQIIII6I32s32s")


@dataclass(frozen=True)
class ImageHeader:
    """The header of an image; offsets are in bytes from the image's beginning.

    `abi`: KILN_ABI. `machine`: see runtime_c/core/image.c. `bytes_count`: with the header, without the
    signature's record. `crc`: CRC-32 of what follows the header. `tables`, `tables_bytes`: the part that a
    program copies; `relocations`, `relocations_count`: the places of pointers in it; `model`: place in it.
    `digest` of the interface and `model_hash` have 32 bytes.
    """

    abi: int
    machine: int
    cpu_features: int
    bytes_count: int
    version: int
    align: int
    crc: int
    tables: int
    tables_bytes: int
    relocations: int
    relocations_count: int
    model: int
    digest: bytes
    model_hash: bytes
    name: str

    def encode(self) -> bytes:
        """The header's 256 bytes."""

        def packed(crc: int) -> bytes:
            numbers = _NUMBERS.pack(
                MAGIC, FORMAT, HEADER_BYTES, self.abi, self.machine, self.cpu_features, self.bytes_count,
                self.version, self.align, self.crc, crc, 0, self.tables, self.tables_bytes, self.relocations,
                self.relocations_count, self.model, 0, self.digest, self.model_hash,
            )  # fmt: skip
            named = numbers + _NAME.pack(self.name.encode()[:63])
            return named + bytes(HEADER_BYTES - len(named))

        return packed(zlib.crc32(packed(0)))


def image_bytes(header: ImageHeader, body: bytes) -> bytes:
    """The file's content: header, `body`, and an empty record (zeros), since the image is not signed yet."""
    if header.bytes_count >= _MOST_BYTES:
        raise KilnError(f"image of {header.name}: {header.bytes_count} bytes, allowed: less than 2 GiB")
    return header.encode() + body + bytes(RECORD_BYTES)


def read_header(content: bytes, where: str) -> ImageHeader:
    """The header of an image's file. Raises KilnError, which begins with `where`, for anything else."""
    if len(content) < HEADER_BYTES or not content.startswith(MAGIC):
        raise KilnError(f"{where}: not an image: it does not begin with {MAGIC.decode()}")
    numbers = _NUMBERS.unpack_from(content)
    name = content[_NUMBERS.size : _NUMBERS.size + _NAME.size].split(b"\0")[0].decode(errors="replace")
    (_, kind, _, abi, machine, features, count, version, align, crc, _, _, tables, tables_bytes, pointers,
     places_count, model, _, digest, model_hash) = numbers  # fmt: skip
    if kind != FORMAT:
        raise KilnError(f"{where}: image of format {kind}, allowed: {FORMAT}")
    header = ImageHeader(
        abi, machine, features, count, version, align, crc, tables, tables_bytes, pointers, places_count,
        model, digest, model_hash, name,
    )  # fmt: skip
    body = content[HEADER_BYTES:count]
    if header.encode() != content[:HEADER_BYTES] or zlib.crc32(body) != crc:
        raise KilnError(f"{where}: damaged: its checksum is wrong")
    if len(content) != count + RECORD_BYTES:
        raise KilnError(f"{where}: {len(content)} bytes, {count + RECORD_BYTES} expected")
    return header
