"""Symbols of an object file in ELF, COFF, Mach-O or WebAssembly.

Formats: Microsoft, "PE Format"; Apple, mach-o/loader.h and mach-o/nlist.h.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from kiln.emit import wasm
from kiln.emit.wasm import ObjectSymbol

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
        return _elf(content)
    except (struct.error, ELFError, IndexError) as error:
        raise ValueError(f"it is damaged: {error}") from None


def _elf(content: bytes) -> list[ObjectSymbol]:
    tables = [
        section
        for section in ELFFile(io.BytesIO(content)).iter_sections()
        if isinstance(section, SymbolTableSection)
    ]
    return [
        ObjectSymbol(entry.name, entry["st_shndx"] != "SHN_UNDEF", entry["st_info"]["type"] == "STT_FUNC")
        for table in tables
        for entry in table.iter_symbols()
    ]


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
