"""A program for a microcontroller: the contents and addresses in an ELF file, and the cores it can run on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from kiln.device.microcontroller.rsp import MemoryMapRegion
from kiln.errors import KilnError

EXIT = "kiln_exit"
_BLOCK = 1024  # bytes compared at a time in memory that is not flash

# Tag_CPU_arch of M-profile code. Source: "Addenda to, and Errata in, the ABI for the Arm Architecture".
_ARCHITECTURES = {
    10: "Armv7-M", 11: "Armv6-M", 12: "Armv6-M", 13: "Armv7E-M", 16: "Armv8-M baseline", 17: "Armv8-M",
    21: "Armv8.1-M",
}  # fmt: skip
_V6, _V7 = ("Armv6-M",), ("Armv6-M", "Armv7-M")
_V8 = (*_V7, "Armv7E-M", "Armv8-M baseline", "Armv8-M")
# Part number in the CPUID register -> LLVM's name of the core, and the architectures whose code it runs.
CORES = {
    0xC20: ("cortex-m0", _V6), 0xC60: ("cortex-m0plus", _V6), 0xC21: ("cortex-m1", _V6),
    0xC23: ("cortex-m3", _V7), 0xC24: ("cortex-m4", (*_V7, "Armv7E-M")),
    0xC27: ("cortex-m7", (*_V7, "Armv7E-M")), 0xD20: ("cortex-m23", (*_V6, "Armv8-M baseline")),
    0xD21: ("cortex-m33", _V8), 0xD22: ("cortex-m55", (*_V8, "Armv8.1-M")),
    0xD23: ("cortex-m85", (*_V8, "Armv8.1-M")),
}  # fmt: skip


@dataclass(frozen=True)
class Image:
    """A program in memory: `parts` are (address, content), sorted by address; the first has the vector table.

    `exit` is the address of kiln_exit, None where the symbol is absent; `architecture` is None where the ELF
    file does not state it.
    """

    path: Path
    sha256: str
    parts: list[tuple[int, bytes]]
    exit: int | None
    architecture: str | None

    @property
    def size(self) -> int:
        """Total bytes of all parts."""
        return sum(len(content) for _, content in self.parts)

    def blocks(
        self, flash: list[MemoryMapRegion]
    ) -> Iterator[tuple[MemoryMapRegion | None, int, list[tuple[int, bytes]]]]:
        """The image in blocks: (flash region or None, address of the block, pieces of the image in it).

        A piece is (address, content). A block in flash is the unit of erasing.
        """
        pieces_by_block: dict[tuple[MemoryMapRegion | None, int], list[tuple[int, bytes]]] = {}
        for address, content in self.parts:
            position = address
            while position < address + len(content):
                region = next((r for r in flash if r.start <= position < r.start + r.bytes), None)
                start, size = (region.start, region.block) if region else (0, _BLOCK)
                block = position - (position - start) % size
                end = min(address + len(content), block + size)
                pieces_by_block.setdefault((region, block), []).append(
                    (position, content[position - address : end - address])
                )
                position = end
        for (region, block), pieces in pieces_by_block.items():
            yield region, block, pieces


def is_image(path: Path) -> bool:
    """Whether a file is an ELF file."""
    with path.open("rb") as stream:
        return stream.read(4) == b"\x7fELF"


def read_image(path: Path) -> Image:
    """Read the image in an ELF file. Raises KilnError where it is not a linked program for Cortex-M."""
    try:
        with path.open("rb") as stream:
            digest = hashlib.sha256(stream.read()).hexdigest()
            elf: Any = ELFFile(stream)
            segments = [
                (int(segment["p_paddr"]), segment.data())
                for segment in elf.iter_segments("PT_LOAD")
                if segment["p_filesz"]
            ]
            table = elf.get_section_by_name(".symtab")
            ends = table.get_symbol_by_name(EXIT) if table is not None else None
            machine, architecture = elf["e_machine"], _architecture(elf)
    except OSError as error:
        raise KilnError(f"{path}: cannot be read: {error.strerror}") from error
    except (ELFError, ValueError, AttributeError, KeyError) as error:
        raise KilnError(f"{path}: cannot be read as an ELF file: {error}") from error
    if machine != "EM_ARM" or not segments or len(min(segments)[1]) < 8:
        raise KilnError(f"{path}: a program for Cortex-M expected, linked, with its vector table first")
    exits = int(ends[0]["st_value"]) & ~1 if ends else None
    return Image(path, digest, sorted(segments), exits, architecture)


def _architecture(elf: Any) -> str | None:
    section = elf.get_section_by_name(".ARM.attributes")
    for subsection in section.iter_subsections() if section is not None else ():
        for scope in subsection.iter_subsubsections():
            for attribute in scope.iter_attributes("TAG_CPU_ARCH"):
                return _ARCHITECTURES.get(attribute.value)
    return None
