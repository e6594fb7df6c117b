"""The linked ELF file of an image: its bytes, and the places of its pointers.

It is linked at address 0, and keeps the relocations that the linker has applied: so every reference in it is
known. Relative ones are right at any address. Absolute ones are allowed in the tables alone, where the
program that opens the image adds its address; and nothing in the code may refer to the tables, since a copy
of them is used elsewhere.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection

from kiln.emit.image_file import HEADER_BYTES
from kiln.errors import KilnError

CODE, TABLES = ".image", ".tables"
_ALLOCATED = 2  # SHF_ALLOC
# By e_machine: the number of a relocation of a whole pointer, and those that do not change when everything
# moves together by a multiple of the image's alignment (the ELF supplements of each processor's ABI).
_PAGE = {"EM_AARCH64": 4096}  # code that computes addresses by pages must be at a multiple of one
_POINTER = {"EM_ARM": {2, 38}, "EM_X86_64": {1}, "EM_AARCH64": {257}, "EM_RISCV": {1, 2}}
_RELATIVE = {
    "EM_ARM": {0, 3, 10, 28, 29, 30, 42, 45, 46, 49, 50, 51, 102, 103},
    "EM_X86_64": {0, 2, 4, 9, 24, 41, 42},
    "EM_AARCH64": {0, 256, *range(260, 263), *range(273, 281), 282, 283, 284, 285, 286, 299, 311, 312, 314},
    "EM_RISCV": {0, *range(16, 21), *range(23, 26), *range(33, 41), 43, 44, 45, *range(51, 58), 59, 60, 61},
}


@dataclass(frozen=True)
class LinkedImage:
    """The contents of a linked image; offsets are bytes from the image's beginning.

    `body`: code, constants, parameters, then tables. `tables`: where these begin; `pointers`: places of
    pointers, relative to the tables. `model`: the place of the model in the tables. `align`: of the image.
    `e_machine`, `bits`, `e_flags`: of the ELF header.
    """

    body: bytes
    tables: int
    pointers: list[int]
    model: int
    align: int
    e_machine: int
    bits: int
    e_flags: int


def read_linked(content: bytes, model: str) -> LinkedImage:
    """Read the image that was linked for `model`. Raises KilnError for code that cannot run anywhere."""
    elf = ELFFile(io.BytesIO(content))
    sections = {section.name: section for section in elf.iter_sections()}
    allocated = [s for s in sections.values() if s["sh_flags"] & _ALLOCATED and s["sh_size"]]
    for section in allocated:
        if section.name not in (CODE, TABLES):
            raise KilnError(
                f"image of {model}: section {section.name} of {section['sh_size']} bytes: code in an image "
                "has no variables and no tables of addresses; a library that needs them cannot be part of it"
            )
    code, tables = sections[CODE], sections[TABLES]
    pointers = _pointers(elf, model, tables["sh_addr"])
    symbols = elf.get_section_by_name(".symtab").get_symbol_by_name(model)
    description = symbols[0]["st_value"] - tables["sh_addr"]
    body = code.data()
    body += bytes(tables["sh_addr"] - HEADER_BYTES - len(body)) + tables.data()
    align = max(64, code["sh_addralign"], _PAGE.get(str(elf.header["e_machine"]), 0))
    machine = int.from_bytes(content[18:20], "little")  # e_machine
    return LinkedImage(
        body, tables["sh_addr"], pointers, description, align, machine, elf.elfclass, elf.header["e_flags"]
    )


def _pointers(elf: ELFFile, model: str, tables: int) -> list[int]:
    """Places of pointers in the tables, relative to them, in ascending order."""
    machine = str(elf.header["e_machine"])
    if machine not in _POINTER:
        raise KilnError(f"image of {model}: no image can be made for {machine}")
    offsets = []
    for section in elf.iter_sections():
        if not isinstance(section, RelocationSection):
            continue
        within = elf.get_section(section["sh_info"])
        if within.name not in (CODE, TABLES):
            continue
        symbols = elf.get_section(section["sh_link"])
        for relocation in section.iter_relocations():
            kind, symbol = relocation["r_info_type"], symbols.get_symbol(relocation["r_info_sym"])
            to = symbol["st_shndx"]
            to_tables = isinstance(to, int) and elf.get_section(to).name == TABLES
            if kind in _POINTER[machine] and within.name == TABLES:
                offsets.append(relocation["r_offset"] - tables)
            elif kind not in _RELATIVE[machine] or (to_tables and kind != 0):
                raise KilnError(
                    f"image of {model}: its code refers to '{symbol.name or TABLES}' by a fixed address "
                    f"(relocation {kind} at {relocation['r_offset']:#x}): compile it with -fPIC, without "
                    "variables"
                )
    return sorted(set(offsets))
