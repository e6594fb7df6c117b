"""Changes of objects in Mach-O that no flag of a compiler or linker makes.

Format: Apple, mach-o/loader.h and mach-o/nlist.h.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Collection, Iterator

MAGIC = b"\xcf\xfa\xed\xfe"
SEGMENT, SYMBOLS, BUILD_VERSION = 0x19, 2, 0x32  # load commands
MACOS, IOS, IOS_SIMULATOR = 1, 2, 7  # platforms of BUILD_VERSION
_PRIVATE, _DEBUGGING, _TYPE, _IN_SECTION = 0x10, 0xE0, 0x0E, 0x0E  # of a symbol's kind
_HEADER = 32


def commands(content: bytes) -> Iterator[tuple[int, int]]:
    """Kind and place of each load command. Raises struct.error for damaged bytes."""
    offset = _HEADER
    for _ in range(struct.unpack_from("<I", content, 16)[0]):
        kind, size = struct.unpack_from("<II", content, offset)
        yield kind, offset
        offset += size


def functions(content: bytes) -> dict[str, int]:
    """Bytes of code of a linked program by the functions' names in C.

    The format has no sizes: a function ends where the next one, or its section, begins. What fills up the
    space between two functions counts as the first one's. Raises struct.error for damaged bytes.
    """
    code: dict[int, tuple[int, int]] = {}  # by number of the section, where it begins and ends
    named: dict[int, list[tuple[int, str]]] = {}  # by number of the section, addresses and names
    number = 0
    for kind, offset in commands(content):
        if kind == SEGMENT:
            for section in range(
                offset + 72, offset + 72 + 80 * struct.unpack_from("<I", content, offset + 64)[0], 80
            ):
                number += 1
                begin, size = struct.unpack_from("<QQ", content, section + 32)
                if content[section:].startswith(b"__text\0"):
                    code[number] = begin, begin + size
        elif kind == SYMBOLS:
            first, count, texts = struct.unpack_from("<III", content, offset + 8)
            for entry in range(first, first + 16 * count, 16):
                name, sort, section, _, address = struct.unpack_from("<IBBHQ", content, entry)
                if sort & _DEBUGGING or sort & _TYPE != _IN_SECTION:
                    continue
                text = content[texts + name : content.index(0, texts + name)].decode("utf-8", "replace")
                named.setdefault(section, []).append((address, text.removeprefix("_")))
    bytes_of: dict[str, int] = {}
    for section, (begin, end) in code.items():
        inside = {address: name for address, name in named.get(section, []) if begin <= address < end}
        addresses = [*sorted(inside), end]
        for here, following in itertools.pairwise(addresses):
            bytes_of[inside[here]] = bytes_of.get(inside[here], 0) + following - here
    return bytes_of


def hidden(content: bytes, names: Collection[str]) -> bytes:
    """An object whose symbols `names`, as C has them, no shared library exports."""
    changed = bytearray(content)
    for kind, offset in commands(content):
        if kind != SYMBOLS:
            continue
        first, count, texts = struct.unpack_from("<III", content, offset + 8)
        for entry in range(first, first + 16 * count, 16):
            begin = texts + struct.unpack_from("<I", content, entry)[0]
            name = content[begin : content.index(0, begin)].decode("utf-8", "replace")
            if name.removeprefix("_") in names:
                changed[entry + 4] |= _PRIVATE
    return bytes(changed)


def for_platform(content: bytes, platform: int) -> bytes:
    """An object with the same code that says it is for `platform`."""
    changed = bytearray(content)
    for kind, offset in commands(content):
        if kind == BUILD_VERSION:
            struct.pack_into("<I", changed, offset + 8, platform)
    return bytes(changed)
