"""Symbols of an object file in ELF, COFF, Mach-O or WebAssembly.

Formats: "Executable and Linking Format" of the Tool Interface Standard; Microsoft, "PE Format"; Apple,
mach-o/loader.h and mach-o/nlist.h.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from kiln.emit import wasm
from kiln.emit.wasm import ObjectSymbol

_SYMBOL_TABLES, _ELF_FUNCTION = (2, 11), 2  # SHT_SYMTAB and SHT_DYNSYM; STT_FUNC
_COFF_MACHINES = (0x8664, 0xAA64)  # x86-64, 64-bit ARM
_COFF_SYMBOL, _COFF_EXTERNAL, _COFF_FUNCTION = 18, 2, 0x20
_MACHO = b"\xcf\xfa\xed\xfe"
_SEGMENT, _SYMBOLS = 0x19, 2  # load commands LC_SEGMENT_64 and LC_SYMTAB
_STAB, _TYPE, _IN_SECTION, _EXTERNAL = 0xE0, 0x0E, 0x0E, 0x01


def symbols(content: bytes) -> list[ObjectSymbol]:
    """The symbols of an object file by their names in C. Raises ValueError for damaged or other bytes."""
    try:
        if content.startswith(wasm.MAGIC):
            return wasm.symbols(content)
        if content.startswith(_MACHO):
            return list(_macho(content))
        if len(content) >= 20 and struct.unpack_from("<H", content)[0] in _COFF_MACHINES:
            return list(_coff(content))
        return list(_elf(content))
    except (struct.error, IndexError) as error:
        raise ValueError(f"it is damaged: {error}") from None


def _elf(content: bytes) -> Iterator[ObjectSymbol]:
    """The symbols of an ELF file, in a thirtieth of the time that pyelftools takes: it is read a lot."""
    if content[:4] != b"\x7fELF" or content[4] not in (1, 2) or content[5] not in (1, 2):
        raise ValueError("it is no object file")
    order, wide = "<>"[content[5] - 1], content[4] == 2
    section = struct.Struct(order + ("4xI16xQQI" if wide else "4xI8xIII"))  # type, offset, size, link
    record = struct.Struct(order + ("IBxH16x" if wide else "I8xBxH"))  # name, information, section
    headers = struct.unpack_from(order + ("40xQ" if wide else "32xI"), content)[0]
    header_size, count = struct.unpack_from(order + "HH", content, 58 if wide else 46)
    sections = [section.unpack_from(content, headers + header_size * number) for number in range(count)]
    for kind, offset, size, link in sections:
        if kind not in _SYMBOL_TABLES:
            continue
        names = sections[link][1]
        if offset + size > len(content):
            raise ValueError("it is damaged: its symbols end after the file")
        for name, information, number in record.iter_unpack(content[offset : offset + size]):
            yield ObjectSymbol(_text(content, names + name), number != 0, information & 15 == _ELF_FUNCTION)


def _text(content: bytes, offset: int) -> str:
    """The text that begins at `offset` and ends before a zero."""
    return content[offset : content.index(0, offset)].decode("utf-8", "replace")


def _coff(content: bytes) -> Iterator[ObjectSymbol]:
    table, count = struct.unpack_from("<II", content, 8)
    texts = table + count * _COFF_SYMBOL
    index = 0
    while index < count:
        offset = table + index * _COFF_SYMBOL
        name, value, section, kind, storage, more = struct.unpack_from("<8sIhHBB", content, offset)
        if name[:4] == b"\0\0\0\0":
            shown = _text(content, texts + struct.unpack("<I", name[4:])[0])
        else:
            shown = name.rstrip(b"\0").decode("utf-8", "replace")
        if storage == _COFF_EXTERNAL:
            # A symbol of section 0 with a value is memory that the linker provides.
            yield ObjectSymbol(shown, section != 0 or value != 0, kind == _COFF_FUNCTION)
        index += 1 + more


def _macho(content: bytes) -> Iterator[ObjectSymbol]:
    commands = struct.unpack_from("<I", content, 16)[0]
    code, number, offset, table = set(), 0, 32, (0, 0, 0)
    for _ in range(commands):
        kind, size = struct.unpack_from("<II", content, offset)
        if kind == _SEGMENT:
            for index in range(struct.unpack_from("<I", content, offset + 64)[0]):
                number += 1
                if content[offset + 72 + 80 * index :].startswith(b"__text\0"):
                    code.add(number)
        elif kind == _SYMBOLS:
            table = struct.unpack_from("<III", content, offset + 8)
        offset += size
    first, count, texts = table
    for index in range(count):
        name, kind, section, _, _ = struct.unpack_from("<IBBHQ", content, first + 16 * index)
        if kind & _STAB or not kind & _EXTERNAL:
            continue
        yield ObjectSymbol(
            _text(content, texts + name).removeprefix("_"), kind & _TYPE == _IN_SECTION, section in code
        )
