"""Link small C programs against a bundle with the target's C compiler."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from kiln import toolchain
from kiln.config import Target
from kiln.emit.compile import compile_file
from kiln.emit.link import has_shared
from kiln.emit.sysroot import linkable, program_flags
from kiln.errors import KilnError
from kiln.files import atomic_write
from kiln.paths import cache_dir
from kiln.scratch import scratch_folder
from kiln.sources.cache import file_sha256

PROGRAMS = Path(__file__).resolve().parent / "programs"
_OTHER_ABI = "different floating-point ABI"  # in the linker's message
# What linkers say of a region that is too small: LLVM's or GNU's, and the assertion in bare/memory.ld.j2.
_OVERFLOW = re.compile(r"region [`']?(?P<region>\w+)'?:? overflowed by (?P<bytes>\d+) bytes")
_NO_STACK = re.compile(r"no room for (?P<bytes>\d+) bytes of stack in region (?P<region>\w+)")
COMPILED = ("-std=c11", "-ffunction-sections", "-fdata-sections")  # flags for every file of a program


def link_flags(target: Target, threads: str, entry: str | None = "main") -> list[str]:
    """Compiler flags to link a program: dead code removed, the C library static on request of the target.

    Without an operating system no start-up code refers to `main`, and the linker would remove all code. So
    `entry` is made the entry, unless it is None because start-up code and a linker script are linked, too.
    """
    flags = [*COMPILED, target.system.remove]
    if target.deployment == "freestanding" and entry is not None:
        flags += ["-nostartfiles", f"-Wl,-e,{entry}"]
    if target.libc.static:
        flags.append("-static")
    if threads == "pthread":
        flags.append("-pthread")
    return flags


def link(
    target: Target,
    sources: Sequence[Path],
    flags: Sequence[str],
    out: Path,
    *,
    include: Sequence[Path] = (),
    libraries: Sequence[Path] = (),
    more: Sequence[str] = (),
) -> Path:
    """Compile and link `sources` with `libraries`, then `more` flags.

    Returns the path of the program: `out`, with a hash of all inputs, one of its content and the target's
    suffix. A program linked earlier from equal inputs is reused, others of the name `out`, and a damaged one,
    are removed. Raises KilnError with the compiler's first error.
    """
    work, name = out.parent, out.name
    command = toolchain.oldest_cpu_command(target)  # so that the program can report what the CPU lacks
    more = [*more, *program_flags(target)]
    key = _key([*command, *flags, *more, name], sources, include, libraries)
    suffix = target.system.program
    kept = _kept(work, f"{name}-{key}", suffix)
    if kept is not None:
        return kept
    try:
        work.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".link-", dir=work) as folder:
            made = Path(folder, f"{name}{suffix}")
            linked = [linkable(target, path, Path(folder)) for path in libraries]
            inputs = [*(f"-I{path}" for path in include), *map(str, [*sources, *linked]), *more]
            _run([*command, *flags, *inputs, "-o", str(made)], f"linking {name}", target)
            for older in work.glob(f"{name}-*"):
                older.unlink()
            program = work / f"{name}-{key}-{file_sha256(made)[:16]}{suffix}"
            os.replace(made, program)
    except OSError as error:
        raise KilnError(f"{work}: cannot write: {error.strerror or error}") from error
    return program


def _run(command: Sequence[str], purpose: str, target: Target) -> None:
    """Run the linker. Raises KilnError with its first error.

    With a remedy for those that have a known cause: ABIs that differ, a region of memory that is too small.
    """
    try:
        toolchain.link(target, command, purpose)
    except KilnError as error:
        text = str(error)
        overflow, stack = _OVERFLOW.search(text), _NO_STACK.search(text)
        if overflow is not None:
            lacking = f"at least {overflow['bytes']} bytes do not fit into it"
            raise KilnError(no_room(target, purpose, overflow["region"], lacking)) from None
        if stack is not None:
            lacking = f"next to variables it has no room for {stack['bytes']} bytes of stack"
            raise KilnError(no_room(target, purpose, stack["region"], lacking)) from None
        if _OTHER_ABI not in text:
            raise
        raise KilnError(
            f"target '{target.name}': kernels, which LLVM compiles for features {target.features}, and C "
            f"code, compiled with {' '.join(target.c_compiler.flags)}, pass floats in different registers: "
            "let keys 'features' and 'c_compiler.flags' name the same instructions for floats"
        ) from None


def no_room(target: Target, purpose: str, region: str, lacking: str) -> str:
    """The message for a program that a region of the target's memory has no room for."""
    size = next(
        (f", {placed.bytes} bytes" for placed in target.memory or () if placed.name == region),
        "",
    )
    return (
        f"target '{target.name}': {purpose}: region '{region}' (key 'memory'{size}) is too small: {lacking}; "
        "the bundle is made without this program: enlarge the region to run it, or test on a target with "
        "more memory"
    )


def common_objects(
    target: Target, sources: Sequence[Path], flags: Sequence[str], headers: Sequence[Path]
) -> list[Path]:
    """Objects of `sources`, which are the same for every model, from the user's cache.

    They include the headers in their folders, and `headers`. Equal commands, sources and headers make
    them once. For a compiler of the user's own, whose version is not known, and where the cache cannot be
    written, the sources are returned: they are compiled with the program. Raises KilnError with the first
    error of the compiler.
    """
    chosen = target.c_compiler
    if chosen.kind != "zig" or chosen.command is not None:
        return list(sources)
    command = toolchain.oldest_cpu_command(target)
    flags = [*flags, *(["-fPIC"] if has_shared(target) else [])]
    key = _key([version("ziglang"), *command[1:], *flags], sources, (), headers)
    include = [f"-I{folder}" for folder in dict.fromkeys(header.parent for header in headers)]
    folder, objects = cache_dir() / "programs" / key, list[Path]()
    for source in sources:
        kept = _kept(folder, source.stem, ".o")
        if kept is None:
            with scratch_folder("program") as work:
                compiled = Path(work, f"{source.stem}.o")
                compile_file([*command, *flags, *include], source, compiled)
                kept = folder / f"{source.stem}-{file_sha256(compiled)[:16]}.o"
                try:
                    atomic_write(kept, compiled.read_bytes())
                except KilnError:
                    return list(sources)
        objects.append(kept)
    return objects


def _kept(folder: Path, name: str, suffix: str) -> Path | None:
    """The undamaged file of `folder` that is called `name`, a hash of its content and `suffix`, if any."""
    for path in folder.glob(f"{name}-*{suffix}"):
        with contextlib.suppress(OSError):
            if path.name == f"{name}-{file_sha256(path)[:16]}{suffix}":
                return path
    return None


def _key(
    words: Sequence[str], sources: Sequence[Path], include: Sequence[Path], libraries: Sequence[Path]
) -> str:
    """Hash of all inputs of a program: command line, sources, headers and libraries, without their paths."""
    digest = hashlib.sha256("\0".join(words).encode())
    headers = [path for folder in include for path in sorted(folder.glob("*.h"))]
    siblings = [path for source in sources for path in sorted(source.parent.glob("*.h"))]
    for path in [*sources, *libraries, *headers, *siblings]:
        try:
            digest.update(f"\0{path.name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
        except OSError as error:
            raise KilnError(f"{path}: cannot read: {error.strerror}") from error
    return digest.hexdigest()[:16]
