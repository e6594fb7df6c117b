"""Operating systems of targets: the files of the runtime and the tools by which they differ.

This is the only place that names a system: each is chosen by the target's triple, and everything else asks
for the properties below.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Format = Literal["elf", "coff", "macho", "wasm"]


@dataclass(frozen=True)
class System:
    """An operating system, or none.

    `words`: beginnings of the part of an LLVM triple that names it. `files`: the runtime's source, in
    runtime_c/platform, for params.bin as a file and the number of processors; None: no files.
    `processors`: by architecture, the source that asks a processor for its features; of others nothing
    can be asked. `flags`: for every object of a library. `shared`: file of a shared library, {} for the
    model's; None: there is none. `threads`: whether there are POSIX threads. `format`: of objects and
    programs. `runner`: the module in device/check/runners for another machine than the target's.
    `remove`: the linker's flag that leaves unused code out. `program`: end of the names of programs.
    `packages`: kinds of packages that kiln.device.packages makes of a bundle, each with the file's name, {}
    for the model's and {version} for Kiln's.
    """

    name: str
    words: tuple[str, ...]
    files: str | None = None
    processors: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    shared: str | None = None
    threads: bool = True
    format: Format = "elf"
    runner: str = "qemu_user"
    remove: str = "-Wl,--gc-sections"
    program: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)


_LINUX_PROCESSORS = {
    "x86_64": "cpu_x86.c", "aarch64": "cpu_arm_linux.c", "armv7": "cpu_arm_linux.c",
    "riscv64": "cpu_riscv_linux.c",
}  # fmt: skip
LINUX = System("Linux", ("linux",), "platform_posix.c", _LINUX_PROCESSORS, ("-fPIC",), "lib{}.so")
_WINDOWS = System(
    "Windows", ("windows",), "platform_windows.c", {"x86_64": "cpu_x86.c"}, shared="{}.dll", format="coff",
    runner="wine", program=".exe",
)  # fmt: skip
_WASI = System(
    "WebAssembly", ("wasi",), "platform_stdio.c",
    threads=False, format="wasm", runner="wasi", packages={"npm": "{}.npm.tgz"},
)  # fmt: skip
# A triple that begins with the architecture and ends with the ABI alone has no system.
NONE = System(
    "none",
    (),
    processors={"x86_64": "cpu_x86.c"},
    flags=("-ffreestanding",),
    threads=False,
    runner="qemu_machine",
    packages={
        "zephyr": "{}.zephyr.zip",
        "cmsis-pack": "Kiln.{}.{version}.pack",
        "arduino": "{}.arduino.zip",
        "esp-idf": "{}.esp-idf.zip",
        "platformio": "{}.platformio.zip",
    },
)
SYSTEMS = (_WASI, _WINDOWS, LINUX)


def system_of(triple: str, deployment: str) -> System:
    """The system of an LLVM triple; NONE for a freestanding target, and where no other fits."""
    parts = triple.split("-")
    if deployment == "freestanding":
        return NONE
    if parts[0].startswith("wasm"):
        return _WASI
    return next((one for one in SYSTEMS if any(p.startswith(one.words) for p in parts[1:])), LINUX)
