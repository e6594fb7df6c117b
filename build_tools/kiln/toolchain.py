"""Calls of the target's C compiler and of the archiver, with their errors reduced to one line."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kiln import limits
from kiln.errors import KilnError
from kiln.files import reason
from kiln.interpreter import module_command
from kiln.packages import missing_program
from kiln.paths import cache_dir, data_dir
from kiln.scratch import scratch_folder

if TYPE_CHECKING:
    from kiln.config import Target

# Flags that choose a CPU or an instruction set; flags that choose an ABI, such as -mfloat-abi, do not match.
_CHOOSES_CPU = re.compile(
    r"-m(cpu|arch|tune|fpu)=|-m(no-)?(sse|ssse|avx|fma|f16c|bmi|lzcnt|popcnt|movbe|sahf|cx16|gfni|v?aes|v?pclmul"
    r"|sha|adx|apx|amx|xop|tbm|xsave|rdrnd|rdseed|prfchw)"
)
_OLDEST_CPU = {
    "zig": {
        "x86_64": ["-mcpu=x86_64"], "aarch64": ["-mcpu=generic"],
        "armv7": ["-mcpu=generic+v7a-neon-d32"], "riscv64": ["-mcpu=baseline_rv64"],
        "wasm32": [],
    },
    "other": {
        "x86_64": ["-march=x86-64"], "aarch64": ["-march=armv8-a"],
        "armv7": ["-march=armv7-a", "-mfpu=vfpv3-d16"], "riscv64": ["-march=rv64gc"],
        "wasm32": [],
    },
}  # fmt: skip
# Architectures on which compilers call functions of their own library for few operations, such as a
# division of integers of 128 bits.
_RARELY_CALL = ("x86_64", "aarch64", "riscv64")
_TIMEOUT = 600.0  # seconds; the first use of zig for a target builds its C library


def compiler_program(target: Target) -> str:
    """The program that compiles C for the target; it need not be installed."""
    chosen = target.c_compiler
    if chosen.command is not None:
        return chosen.command[0]
    return sys.executable if chosen.kind == "zig" else chosen.kind


def compiler_command(target: Target) -> list[str]:
    """The command that compiles C for the target, with the target's own flags.

    Raises KilnError if the compiler is not installed.
    """
    chosen = target.c_compiler
    if chosen.command is not None:
        command = list(chosen.command)
    elif chosen.kind == "zig":
        command = [*zig_command(), "cc"]
    else:
        command = [chosen.kind]
    if shutil.which(command[0]) is None:
        raise KilnError(
            f"target '{target.name}': C compiler {missing_program(command[0])} (key 'c_compiler')"
        )
    if chosen.target is not None:
        command += ["-target", chosen.target]
    if has_own_sysroot(target):
        folder = data_dir("runtime_c") / str(target.system.sysroot)
        command += ["-nostdlib", "-isystem", str(folder / "include")]
        options = folder / f"{target.arch}.cfg"
        command += [f"--config={options}"] if options.is_file() else []
    if target.system.headers is not None and links_with_zig(target):
        folder = Path(zig_command()[0]).parent / "lib" / "libc" / "include" / target.system.headers
        command += ["-isystem", str(folder)]
    return command + list(chosen.flags)


def has_own_sysroot(target: Target) -> bool:
    """Whether Kiln provides the C library's headers and names, since the compiler, zig, has none for it."""
    return target.system.sysroot is not None and links_with_zig(target)


def links_with_zig(target: Target) -> bool:
    """Whether the target's compiler is the zig that comes with Kiln."""
    return target.c_compiler.kind == "zig" and target.c_compiler.command is None


def oldest_cpu_command(target: Target) -> list[str]:
    """`compiler_command` for code that runs on every processor of the target's architecture.

    On hosted targets the runtime, the plan and Kiln's own programs are compiled with this command, because
    they detect and report that a processor lacks features that the kernels need. Flags of the target's
    `c_compiler` that choose a CPU or an instruction set are left out. A freestanding target keeps its flags:
    it has one CPU.
    """
    command = compiler_command(target)
    if target.deployment == "freestanding":
        return command
    kept = [flag for flag in command if not _CHOOSES_CPU.match(flag)]
    return kept + _OLDEST_CPU["zig" if target.c_compiler.kind == "zig" else "other"][target.arch]


def archiver_command() -> list[str]:
    """Command of zig's archiver (LLVM's), which reads the objects of every target and writes no dates."""
    return [*zig_command(), "ar"]


def linker_command() -> list[str]:
    """Command of LLVM's linker for ELF files, which zig has; it links for every architecture."""
    return [*zig_command(), "ld.lld"]


def compiler_library(target: Target, folder: Path) -> Path:
    """The library of functions that the target's compiler calls on its own, such as divisions.

    `folder`: where it may be written. Raises KilnError where the compiler names none.
    """
    chosen = target.c_compiler
    if chosen.kind == "zig":
        source = folder / "compiler_library.c"
        source.write_text("extern int kiln_compiler_library;\n")
        cpu = [flag for flag in chosen.flags if flag.startswith("-mcpu=")]
        kind = [] if chosen.target is None else ["-target", chosen.target]
        named = ["--name", "compiler", "-fcompiler-rt", "-fPIC", "-OReleaseSmall", "-fstrip"]
        out = folder / "libcompiler.a"
        command_line = [*zig_command(), "build-lib", *kind, *cpu, *named, f"-femit-bin={out}", str(source)]
        run(command_line, "making the compiler's library")
        return out
    command = [*compiler_command(target), "-print-libgcc-file-name"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_TIMEOUT)
    library = Path(done.stdout.strip())
    if done.returncode != 0 or not library.is_file():
        raise KilnError(f"target '{target.name}': {chosen.kind} has no library of its own (libgcc)")
    return library


@functools.cache
def zig_command() -> tuple[str, ...]:
    """Command that starts zig: the program in the ziglang package itself, to save the start of a Python."""
    package = importlib.util.find_spec("ziglang")
    for folder in (package.submodule_search_locations or ()) if package else ():
        program = os.path.join(folder, "zig")
        if os.access(program, os.X_OK):
            return (program,)
    return tuple(module_command("ziglang"))


def _unreadable_path(command: Sequence[str]) -> str | None:
    """What to do about a folder whose name zig 0.17 cannot read in its lists of headers; None without one."""
    paths = [word[max(word.find("/"), 0) :] for word in command if "/" in word]
    path = next((path for path in paths if '"' in path or "\\" in path), None)
    return path and f"{path}: zig reads no folder whose name has a double quote or a backslash: rename it"


def run(command: Sequence[str], purpose: str) -> None:
    """Run a compiler, linker or archiver. Raises KilnError with the tool's first error, after `purpose`."""
    try:
        # zig 0.17 returns a wrong object from its local cache for a source with an absolute path and headers
        # with a relative path, compiled before in another working folder; and the local cache grows without
        # limit. So each call has its own local cache. The global cache keeps the C libraries that zig builds.
        with scratch_folder("zig") as local:
            caches = {"ZIG_GLOBAL_CACHE_DIR": str(cache_dir() / "zig"), "ZIG_LOCAL_CACHE_DIR": str(local)}
            done = subprocess.run(
                command,
                check=False,
                env={**caches, **os.environ},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT,
            )
    except subprocess.TimeoutExpired:
        raise KilnError(f"{purpose}: took longer than its limit of {_TIMEOUT:g} s") from None
    except OSError as error:
        raise KilnError(f"{purpose}: cannot start '{command[0]}': {reason(error)}") from error
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip() and "warning:" not in line]
        errors = [line for line in lines if "error" in line or "No module" in line or "No space" in line]
        first = (errors or lines or [limits.silent_end(done.returncode, [cache_dir()])])[0]
        if re.search(r"failed to parse '\S+\.d'", first):
            first = _unreadable_path(command) or first
        raise KilnError(f"{purpose}: '{' '.join(command[:4])} …' failed: {first}")


def link(target: Target, command: Sequence[str], purpose: str) -> None:
    """Run a command of the target's compiler that links. Raises KilnError as `run` does.

    Before zig links, it makes two libraries: one of a sanitizer, unless a flag switches that off, and one of
    the functions that compilers call on their own. Each takes four seconds of processor time, again for every
    processor, kind of optimisation and form of the output, and most code calls neither. So code for
    architectures that rarely need the second is linked without it first, and with it if symbols are
    undefined then.
    """
    if not links_with_zig(target):
        run(command, purpose)
        return
    command = [*command, "-fno-sanitize=undefined"]
    if target.arch in _RARELY_CALL and target.system.format != "coff" and not target.libc.static:
        # A shared library may otherwise have undefined symbols.
        defined = ["-Wl,-z,defs"] if target.system.format == "elf" else []
        try:
            run([*command, "-rtlib=none", *defined], purpose)
        except KilnError as error:
            if "undefined symbol" not in str(error):
                raise
        else:
            return
    run(command, purpose)
