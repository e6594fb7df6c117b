"""The compiler, C library and emulator of a target's programs: keys of targets/*.yaml."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kiln.config.check import Section
from kiln.config.systems import NONE, System, known_system

VERSION = r"^\d+(\.\d+)*$"
_VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
# By architecture whose names in zig differ from its own.
_ZIG = {"armv7": ("arm", "thumb"), "arm_m": ("thumb", "arm")}
_ABIS = {"glibc": "gnu", "musl": "musl"}  # by C library: how zig's names of its ABIs begin


class CCompiler(Section):
    """The compiler of generated C and of the runtime; LLVM compiles the kernels."""

    kind: Literal["zig", "gcc", "clang"] = Field(
        description="which compiler: zig comes with Kiln, gcc and clang are the system's"
    )
    command: list[str] | None = Field(
        min_length=1,
        description="command to run; null: zig from the ziglang package, or the program named like `kind`",
    )
    target: str | None = Field(description="value of the flag -target; null: no such flag")
    flags: list[str] = Field(description="additional flags, for every compilation and link")


class Libc(Section):
    """The C library that programs for the target are linked with."""

    name: Literal["glibc", "musl", "bionic", "libSystem", "mingw", "wasi", "newlib", "none"] = Field(
        description="which C library; bionic: Android's; libSystem: Apple's; mingw: for Windows; "
        "wasi: WebAssembly's; none: freestanding"
    )
    version: Annotated[str, Field(pattern=VERSION)] | None = Field(
        description="oldest version that must be sufficient, on Android the API level; null: any"
    )
    static: bool = Field(description="programs are linked statically and load nothing at run time")


class Emulator(Section):
    """An emulator that runs the target's programs on another CPU."""

    command: str = Field(description="the emulator's program")
    args: list[str] = Field(description="arguments, which set the CPU so that code for a newer one fails")
    env: dict[Annotated[str, Field(pattern=_VARIABLE)], str] = Field(
        description="environment variables of the emulator"
    )
    since: Annotated[str, Field(pattern=VERSION)] | None = Field(
        default=None, description="oldest version of the program that emulates the CPU right; null: any"
    )


def c_compiler_fault(compiler: CCompiler, libc: Libc, triple: str, arch: str, system: System) -> str | None:
    """The conflict of `c_compiler.target` with the target's other keys, as part of a sentence.

    None if there is no conflict. For clang, whose names are LLVM's and may contain a vendor, only the
    presence of the name is checked.
    """
    if compiler.kind == "gcc" and compiler.command is None and compiler.target is not None:
        return f"'{compiler.target}': gcc has no flag -target: null expected"
    if compiler.kind != "zig":
        return None
    if compiler.target is None:
        return (
            "null: zig would compile for the machine that builds: its name of the target's machine expected"
        )
    return _zig_fault(compiler.target, libc, triple, arch, system)


def _zig_fault(named: str, libc: Libc, triple: str, arch: str, system: System) -> str | None:
    first, _, system_and_abi = named.partition("-")
    name, _, abi = system_and_abi.partition("-")
    expected = _ZIG.get(arch, (arch,))
    if first not in expected:
        return f"'{named}' is not zig's name of a machine of arch {arch}: {' or '.join(expected)}-… expected"
    if system is NONE:
        fits = name in ("freestanding", "none") or known_system(named) is known_system(triple) is not None
    else:
        fits = known_system(named) is system
    if not fits:
        return f"'{named}' and the triple '{triple}' name different systems"
    if arch in _ZIG and ("eabihf" in abi) != triple.endswith("hf"):
        return f"'{named}' and the triple '{triple}' pass floats in different ways: eabihf in both or in none"
    if not abi.startswith(_ABIS.get(libc.name, "")):
        return f"'{named}' is not for {libc.name}, the target's C library (key 'libc.name')"
    kind, _, version = abi.partition(".")
    if libc.name in ("glibc", "bionic") and version != (libc.version or ""):
        right = f"{first}-{name}-{kind}" + (f".{libc.version}" if libc.version else "")
        return f"'{named}' and key 'libc.version' ({libc.version or 'null'}) differ: '{right}' expected"
    return None
