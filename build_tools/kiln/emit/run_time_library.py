"""Functions that kernel code may call: every compiler for the target provides them."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from kiln.config import Target
from kiln.emit.object_symbols import symbols

# Functions that every freestanding device must provide: compilers emit calls of them on their own.
ALLOWED = {"memcpy", "memset", "memmove"}
# Division of 32-bit numbers on ARM CPUs without an instruction for it: part of every compiler for that ABI
# (Run-time ABI for the Arm Architecture, 5.3.1). Kernels divide where sizes are known only at run time.
ALLOWED |= {"__aeabi_idiv", "__aeabi_idivmod", "__aeabi_uidiv", "__aeabi_uidivmod"}

# The probe of a large frame's stack on Windows: part of every compiler for that system.
ALLOWED |= {"___chkstk_ms"}

# What LLVM makes of loops and of memset on Apple's systems: part of their C library.
_OF_APPLE = {"bzero", "__bzero", "memset_pattern4", "memset_pattern8", "memset_pattern16"}

# On cores without the instructions, arithmetic of 64-bit numbers and of floats: by architecture, the names in
# the compiler's own library, which it links on its own. Sources: Run-time ABI for the Arm Architecture, 5;
# "The GCC low-level runtime library" in GCC's internals manual.
_OF_ARM = re.compile(r"__aeabi_(mem\w+|[iu]?[fdluic]\w+)")
_OF_COMPILER = {
    "arm_m": _OF_ARM,
    "armv7": _OF_ARM,
    "riscv32": re.compile(r"__[a-z]+(hf|sf|df|si|di|ti)+[23]?"),
}
_OF_FLOATS = re.compile(
    r"__aeabi_(c?[fd]|\w+2[fd]$|h2f)\w*|__[a-z]*([hsd]f)+([sdt]i)?[23]?|__[a-z]+[sdt]i[hsd]f"
)
# Between floats and integers of 64 bits: cores with instructions for all arithmetic on floats lack these.
_OF_LONGS = re.compile(r"__aeabi_([fd]2u?lz|u?l2[fd])|__fix(uns)?[sd]fdi|__float(un)?di[sd]f")

# Symbols that every linker defines: tables of addresses, the stack and the memory of WebAssembly.
_OF_LINKER = ("_GLOBAL_OFFSET_TABLE_", "__stack_pointer", "__memory_base", "__table_base", "__linear_memory")


def is_available(symbol: str, target: Target | None) -> bool:
    """Whether code may call `symbol` on every machine of `target`; None: on every freestanding machine."""
    names = _OF_COMPILER.get(target.arch) if target is not None else None
    if symbol in _OF_APPLE:
        return target is not None and target.system.format == "macho"
    return symbol in ALLOWED or bool(names is not None and names.fullmatch(symbol))


def computes_floats(symbol: str) -> bool:
    """Whether `symbol` is a function of a compiler's library that computes with floats in software.

    A local name of zig's library has its file before it: `compiler_rt.addf3.__aeabi_fadd`.
    """
    return _OF_FLOATS.fullmatch(symbol.rpartition(".")[2]) is not None


def converts_longs(symbol: str) -> bool:
    """Whether `symbol` is such a function that converts between floats and integers of 64 bits."""
    return _OF_LONGS.fullmatch(symbol.rpartition(".")[2]) is not None


def in_software(symbols: Collection[str]) -> set[str]:
    """Those of `symbols` that compute with floats in software, with others of the same file of the library.

    Empty where they only convert between floats and integers of 64 bits: the core computes floats.
    """
    computing = {symbol for symbol in symbols if computes_floats(symbol)}
    if all(converts_longs(symbol) for symbol in computing):
        return set()
    files = {file for symbol in computing if (file := symbol.rpartition(".")[0])}
    return computing | {symbol for symbol in symbols if symbol.rpartition(".")[0] in files}


def missing_symbols(path: Path, target: Target | None = None) -> list[str]:
    """Undefined symbols of an object that a device of `target` without an operating system lacks, sorted."""
    return sorted(
        symbol.name
        for symbol in symbols(path.read_bytes())
        if not symbol.defined
        and symbol.name
        and not is_available(symbol.name, target)
        and not symbol.name.startswith(_OF_LINKER)
    )
