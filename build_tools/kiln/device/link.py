"""Link small C programs against a bundle with the target's C compiler."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kiln import paths
from kiln.config import Target
from kiln.errors import KilnError

PROGRAMS = Path(__file__).resolve().parent / "programs"
_TIMEOUT = 600.0  # seconds; the first use of zig for a target builds its C library


def compiler_command(target: Target) -> list[str]:
    """The command that compiles C for the target, with its flags. Raises KilnError when it is missing."""
    chosen = target.c_compiler
    if chosen.command is not None:
        command = list(chosen.command)
    elif chosen.kind == "zig":
        command = [sys.executable, "-m", "ziglang", "cc"]
    else:
        command = [chosen.kind]
    if shutil.which(command[0]) is None:
        raise KilnError(
            f"target '{target.name}': C compiler '{command[0]}' is not installed (key 'c_compiler')"
        )
    if chosen.target is not None:
        command += ["-target", chosen.target]
    return command + list(chosen.flags)


def link_flags(target: Target, threads: str) -> list[str]:
    """What a whole program needs besides its objects: dead code dropped, C library as the target says."""
    flags = ["-std=c11", "-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections"]
    if target.libc.static:
        flags.append("-static")
    if threads == "pthread":
        flags.append("-pthread")
    return flags


def link(
    target: Target,
    sources: Sequence[Path],
    flags: Sequence[str],
    *,
    include: Sequence[Path] = (),
    libraries: Sequence[Path] = (),
    work: Path,
    name: str,
) -> Path:
    """Compile and link `sources` with `libraries`; the program lies in `work` under the hash of its inputs.

    An equal program made before is taken again. Raises KilnError with the compiler's first error.
    """
    command = compiler_command(target)
    program = work / f"{name}-{_key([*command, *flags, name], sources, include, libraries)}"
    if program.is_file():
        return program
    work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".link-", dir=work) as folder:
        made = Path(folder, name)
        _compile(
            [
                *command,
                *flags,
                *(f"-I{folder}" for folder in include),
                *map(str, sources),
                *map(str, libraries),
                "-o",
                str(made),
            ],
            name,
        )
        os.replace(made, program)
    return program


def _key(
    words: Sequence[str], sources: Sequence[Path], include: Sequence[Path], libraries: Sequence[Path]
) -> str:
    """Hash of everything that decides what the program does, paths excepted."""
    digest = hashlib.sha256("\0".join(words).encode())
    headers = [path for folder in include for path in sorted(folder.glob("*.h"))]
    siblings = [
        path for folder in {source.parent for source in sources} for path in sorted(folder.glob("*.h"))
    ]
    for path in [*sources, *libraries, *headers, *siblings]:
        try:
            digest.update(f"\0{path.name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
        except OSError as error:
            raise KilnError(f"{path}: cannot read: {error.strerror}") from error
    return digest.hexdigest()[:16]


def _compile(command: Sequence[str], name: str) -> None:
    cache = str(paths.cache_dir() / "zig")
    environment = {"ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache, **os.environ}
    try:
        done = subprocess.run(
            command,
            check=False,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        raise KilnError(f"{name}: compiling took longer than its limit of {_TIMEOUT:g} s") from None
    except OSError as error:
        raise KilnError(f"{name}: cannot start the C compiler '{command[0]}': {error.strerror}") from error
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        first = next((line for line in lines if "error" in line or "No module" in line), (lines or [""])[0])
        raise KilnError(f"{name}: cannot be compiled and linked with '{' '.join(command[:4])} …': {first}")
