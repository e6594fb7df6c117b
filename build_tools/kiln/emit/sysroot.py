"""Linker arguments for systems whose C library Kiln stands in for with its own list of names.

The folder of the system in runtime_c has one C file for each library, which only defines the names, and
start.c, which calls `main`. A linker needs no more: on the device, the system's own libraries are loaded.
"""

from __future__ import annotations

import hashlib
import re
from importlib.metadata import version
from pathlib import Path

from kiln.config import Target
from kiln.emit.archive_members import members
from kiln.emit.macho import IOS_SIMULATOR, for_platform
from kiln.files import atomic_write
from kiln.paths import cache_dir, data_dir
from kiln.scratch import scratch_folder
from kiln.toolchain import compiler_command, has_own_sysroot, links_with_zig
from kiln.toolchain import run as run_tool

_START = "start.c"
# To link for older API levels, zig requires Android's own C library, because thread-local variables need its
# functions there. Kiln's code has no such variables, and objects are compiled for the target's level.
_LINKS_FOR = ".29"
_FLAGS = ("-Os", "-fPIC", "-fno-stack-protector", "-fno-sanitize=undefined")


def shared_flags(target: Target) -> list[str]:
    """The last words of the command that links a shared library. Raises KilnError where a tool fails."""
    return [*target.system.link, *_level(target), *(str(path) for path in _libraries(target))]


def program_flags(target: Target) -> list[str]:
    """The last words of the command that links a program. Raises KilnError where a tool fails."""
    flags = list(target.system.link)
    if target.system.links_as and target.c_compiler.target is not None and links_with_zig(target):
        return [*flags, "-target", target.c_compiler.target + target.system.links_as]
    if not has_own_sysroot(target):
        return flags
    start = _made(target, _folder(target) / _START, "start.o", ["-c"])
    return [*flags, *_level(target), "-fPIE", "-pie", "-Wl,-dynamic-linker=/system/bin/linker64", str(start),
            *(str(path) for path in _libraries(target))]  # fmt: skip


def _level(target: Target) -> list[str]:
    """The flag that lets zig link; empty where the compiler has the C library."""
    named = target.c_compiler.target
    if named is None or not has_own_sysroot(target):
        return []
    return ["-target", re.sub(r"\.[0-9]+$", "", named) + _LINKS_FOR]


def linkable(target: Target, library: Path, folder: Path) -> Path:
    """`library`, or for iOS a copy in `folder` that is marked as built for the simulator.

    zig links for the simulator alone.
    """
    if not target.system.links_as or not links_with_zig(target):
        return library
    out = folder / library.name
    content = bytearray(library.read_bytes())
    for _, offset, size in members(bytes(content)):
        content[offset : offset + size] = for_platform(bytes(content[offset : offset + size]), IOS_SIMULATOR)
    out.write_bytes(content)
    return out


def _folder(target: Target) -> Path:
    return data_dir("runtime_c") / str(target.system.sysroot)


def _libraries(target: Target) -> list[Path]:
    """Shared libraries that only have names; empty where the compiler has the C library."""
    if not has_own_sysroot(target):
        return []
    sources = (path for path in sorted(_folder(target).glob("*.c")) if path.name != _START)
    return [
        _made(target, source, f"{source.stem}.so", ["-shared", f"-Wl,-soname,{source.stem}.so"])
        for source in sources
    ]


def _made(target: Target, source: Path, name: str, flags: list[str]) -> Path:
    """The compiler's output for `source`, from the user's cache."""
    command = [*compiler_command(target), *_FLAGS, *flags, *_level(target)]
    digest = hashlib.sha256("\0".join([version("ziglang"), *command[1:]]).encode() + source.read_bytes())
    out = cache_dir() / "sysroot" / digest.hexdigest()[:16] / name
    if not out.is_file():
        with scratch_folder("sysroot") as folder:
            output = Path(folder, name)
            run_tool([*command, str(source), "-o", str(output)], f"compiling {source.name}")
            atomic_write(out, output.read_bytes())
    return out
