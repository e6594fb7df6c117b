"""Changes of objects in Mach-O that no flag of a compiler or linker makes.

Format: Apple, mach-o/loader.h and mach-o/nlist.h.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator

MAGIC = b"\xcf\xfa\xed\xfe"
SEGMENT, SYMBOLS, BUILD_VERSION = 0x19, 2, 0x32  # load commands
MACOS, IOS, IOS_SIMULATOR = 1, 2, 7  # platforms of BUILD_VERSION
_PRIVATE = 0x10
_HEADER = 32


def commands(content: bytes) -> Iterator[tuple[int, int]]:
    """Kind and place of each load command. Raises struct.error for damaged bytes."""
    at = _HEADER
    for _ in range(struct.unpack_from("<I", content, 16)[0]):
        kind, size = struct.unpack_from("<II", content, at)
        yield kind, at
        at += size


def hidden(content: bytes, names: Collection[str]) -> bytes:
    """An object whose symbols `names`, as C has them, no shared library exports."""
    changed = bytearray(content)
    for kind, at in commands(content):
        if kind != SYMBOLS:
            continue
        first, count, texts = struct.unpack_from("<III", content, at + 8)
        for entry in range(first, first + 16 * count, 16):
            begin = texts + struct.unpack_from("<I", content, entry)[0]
            name = content[begin : content.index(0, begin)].decode("utf-8", "replace")
            if name.removeprefix("_") in names:
                changed[entry + 4] |= _PRIVATE
    return bytes(changed)


def for_platform(content: bytes, platform: int) -> bytes:
    """An object with the same code that says it is for `platform`."""
    changed = bytearray(content)
    for kind, at in commands(content):
        if kind == BUILD_VERSION:
            struct.pack_into("<I", changed, at + 8, platform)
    return bytes(changed)
