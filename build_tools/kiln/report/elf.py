"""Sizes of the sections and functions of a linked program, read from its file."""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.elf.constants import SH_FLAGS
from elftools.elf.elffile import ELFFile

from kiln.emit import macho, wasm
from kiln.errors import KilnError

# Flags of a section of a program for Windows.
_PE_CODE, _PE_DISCARDABLE, _PE_WRITE = 0x20, 0x02000000, 0x80000000
# The same for Apple's systems, and the types of sections that are zeros at first.
_MACHO_CODE, _MACHO_SOME_CODE, _MACHO_ZEROS = 0x80000000, 0x400, (0x01, 0x0C, 0x12)


@dataclass(frozen=True)
class Sections:
    """Bytes of a program's sections by kind: text, rodata and data are in flash, data and bss in RAM."""

    text: int
    rodata: int
    data: int
    bss: int

    def __sub__(self, other: Sections) -> Sections:
        return Sections(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))

    @property
    def flash(self) -> int:
        """Bytes in flash: text, rodata and data."""
        return self.text + self.rodata + self.data

    @property
    def ram(self) -> int:
        """Bytes of static variables: data and bss."""
        return self.data + self.bss


@dataclass(frozen=True)
class ElfProgram:
    """A linked program: section sizes, and bytes of code by function name."""

    sections: Sections
    functions: dict[str, int]


def read_program(path: Path) -> ElfProgram:
    """Measure a program in ELF, Mach-O, Windows' format or WebAssembly.

    All initial data of WebAssembly counts as rodata. Raises KilnError for any other file.
    """
    try:
        with path.open("rb") as stream:
            if stream.read(len(wasm.MAGIC)) == wasm.MAGIC:
                code, data, functions = wasm.code_and_data(path.read_bytes())
                return ElfProgram(Sections(text=code, rodata=data, data=0, bss=0), functions)
            stream.seek(0)
            start = stream.read(4)
            if start[:2] == b"MZ":
                return _portable(path.read_bytes())
            if start == macho.MAGIC:
                return _of_apple(path.read_bytes())
            elf: Any = ELFFile(stream)
            return ElfProgram(_sections(elf), functions_of(elf))
    except (OSError, ELFError, ValueError, struct.error) as error:
        raise KilnError(f"{path}: cannot be read as a program: {error}") from error


def _portable(content: bytes) -> ElfProgram:
    """Sections of a program for Windows (PE); its functions have no sizes."""
    header = struct.unpack_from("<I", content, 0x3C)[0] + 4
    count, optional = struct.unpack_from("<2xH12xH", content, header)
    sizes = {"text": 0, "rodata": 0, "data": 0, "bss": 0}
    for index in range(count):
        offset = header + 20 + optional + 40 * index
        size, _, stored, _, flags = struct.unpack_from("<IIII12xI", content, offset + 8)
        if flags & _PE_DISCARDABLE:  # debugging information, relocations
            continue
        kind = "text" if flags & _PE_CODE else "data" if flags & _PE_WRITE else "rodata"
        initial = min(size, stored)
        sizes[kind] += initial
        sizes["bss"] += size - initial
    return ElfProgram(Sections(**sizes), {})


def _of_apple(content: bytes) -> ElfProgram:
    """Sections and functions of a program for Apple's systems (Mach-O)."""
    sizes = {"text": 0, "rodata": 0, "data": 0, "bss": 0}
    for kind, offset in macho.commands(content):
        if kind != macho.SEGMENT or content[offset + 8 :].startswith((b"__DWARF\0", b"__LINKEDIT\0")):
            continue
        fixed = content[offset + 8 :].startswith(b"__TEXT\0")
        for section in range(
            offset + 72, offset + 72 + 80 * struct.unpack_from("<I", content, offset + 64)[0], 80
        ):
            size, flags = struct.unpack_from("<40xQ16xI", content, section)
            code = flags & (_MACHO_CODE | _MACHO_SOME_CODE)
            empty = flags & 0xFF in _MACHO_ZEROS
            sizes["bss" if empty else "text" if code else "rodata" if fixed else "data"] += size
    return ElfProgram(Sections(**sizes), macho.functions(content))


def _sections(elf: Any) -> Sections:
    sizes = {"text": 0, "rodata": 0, "data": 0, "bss": 0}
    for section in elf.iter_sections():
        flags = section["sh_flags"]
        # .relro_padding fills the page that becomes read-only after relocation: address space, not memory.
        if not flags & SH_FLAGS.SHF_ALLOC or section.name == ".relro_padding":
            continue
        if section["sh_type"] == "SHT_NOBITS":
            kind = "bss"
        elif flags & SH_FLAGS.SHF_EXECINSTR:
            kind = "text"
        else:
            kind = "data" if flags & SH_FLAGS.SHF_WRITE else "rodata"
        sizes[kind] += section["sh_size"]
    return Sections(**sizes)


def functions_of(elf: Any) -> dict[str, int]:
    """Bytes of code by function name, from the symbol table of an opened ELF file.

    A function with several names is counted once, under the name with the most parts: zig's library has a
    local name with the file, such as `compiler_rt.addf3.__aeabi_fadd`, beside the name that others call.
    """
    table = elf.get_section_by_name(".symtab")
    names: dict[tuple[int, int], list[str]] = {}
    code_bytes: dict[str, int] = {}
    for symbol in table.iter_symbols() if table is not None else ():
        if symbol["st_info"]["type"] == "STT_FUNC" and symbol["st_size"] > 0:
            place = symbol["st_value"], symbol["st_size"]
            names.setdefault(place, []).append(symbol.name)
    for (_, size), aliases in names.items():
        name = min(aliases, key=lambda alias: (-alias.count("."), alias))
        code_bytes[name] = code_bytes.get(name, 0) + size
    return code_bytes
