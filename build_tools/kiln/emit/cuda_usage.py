"""Resource usage of GPU kernels, read from their machine code (cubin files, which are ELF).

Registers and stack are recorded in section .nv.info, a list of entries: format, attribute, and 16 bits that
are a value or, in format 4, the number of bytes that follow (here a symbol's index and a number). `ptxas -v`
prints the same figures, but the output of several ptxas processes that run in parallel is interleaved.
"""

from __future__ import annotations

import io
import struct
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from kiln.errors import KilnError

_SIZED = 4  # EIFMT_SVAL
_REGISTERS, _FRAME = 0x2F, 0x11  # EIATTR_REGCOUNT, EIATTR_FRAME_SIZE
_NAMES = {_REGISTERS: "registers", _FRAME: "stack_bytes"}


def usage(cubin: bytes) -> dict[str, dict[str, int]]:
    """Return for each kernel: code bytes, registers and stack per thread, static shared memory per block.

    The stack holds spilled registers and indexed arrays. Raises KilnError if `cubin` is not a cubin.
    """
    try:
        elf: Any = ELFFile(io.BytesIO(cubin))
        sizes = {section.name: int(section["sh_size"]) for section in elf.iter_sections()}
        names = [symbol.name for symbol in elf.get_section_by_name(".symtab").iter_symbols()]
        info = elf.get_section_by_name(".nv.info")
        kernels = {
            name.removeprefix(".text."): {
                "bytes": size,
                "registers": 0,
                "stack_bytes": 0,
                "shared_bytes": sizes.get(f".nv.shared.{name.removeprefix('.text.')}", 0),
            }
            for name, size in sizes.items()
            if name.startswith(".text.")
        }
        for attribute, symbol, value in _numbers(info.data() if info is not None else b""):
            if attribute in _NAMES and names[symbol] in kernels:
                kernels[names[symbol]][_NAMES[attribute]] = value
    except (ELFError, AttributeError, IndexError, struct.error) as error:
        raise KilnError(f"nvcc's machine code cannot be read: {error}") from error
    return kernels


def _numbers(info: bytes) -> list[tuple[int, int, int]]:
    """Attributes in .nv.info that assign a number to a symbol: (attribute, symbol's index, number)."""
    offset, numbers = 0, []
    while offset + 4 <= len(info):
        kind, attribute, size = struct.unpack_from("<BBH", info, offset)
        offset += 4
        if kind == _SIZED:
            if size == 8:
                numbers.append((attribute, *struct.unpack_from("<II", info, offset)))
            offset += size
    return numbers
