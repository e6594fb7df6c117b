"""Operating systems of targets: the files of the runtime and the tools by which they differ.

This is the only place that names a system: each is chosen by the target's triple, and everything else asks
for the properties below.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

Format = Literal["elf", "coff", "macho", "wasm"]


@dataclass(frozen=True)
class System:
    """An operating system, or none.

    `words`: beginnings of the part of an LLVM triple that names it. `files`: the runtime's source, in
    runtime_c/platform, for params.bin as a file and the number of processors; None: no files. `processors`:
    by architecture, the source that knows a processor's features, or asks for them; of others nothing can be
    asked. `flags`: for every object of a library. `shared`: file of a shared library, {} for the model's;
    None: there is none. `threads`: whether there are POSIX threads. `format`: of objects and programs.
    `runner`: the module in device/check/runners for another machine than the target's. `keeps_processor`:
    whether that runner executes programs on this machine's processor, as Wine does. `remove`: the linker's
    flag that leaves unused code out. `program`: end of the names of programs. `packages`: kinds of packages
    that kiln.device.packages makes of a bundle, each with the file's name, {} for the model's and {version}
    for Kiln's. `libcs`: names of its C libraries. `oldest`: the least version that `libc.version` may be.
    `link`: the linker's flags for programs and shared libraries. `sysroot`: the folder in runtime_c that zig,
    which has none, gets headers and names of the C library from. `headers`: the same, of headers alone, in
    zig's own. `host`: the system, by Python's name, of machines that can run its programs; None: no machine
    that builds. `links_as`: what is added to zig's name of the system where zig can link for that system
    alone. `form`: regular expression of an LLVM triple after its vendor. `example`: what fits it.
    `eabi`: 32-bit Arm's ABI is added to the triple.
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
    keeps_processor: bool = False
    remove: str = "-Wl,--gc-sections"
    program: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    libcs: tuple[str, ...] = ("glibc", "musl")
    oldest: int | None = None
    link: tuple[str, ...] = ()
    sysroot: str | None = None
    headers: str | None = None
    host: str | None = None
    links_as: str = ""
    form: str = "linux-(gnu|musl)"
    example: str = "linux-gnu"
    eabi: bool = False

    def serves(self, arch: str) -> bool:
        """Whether there are programs for the system on an architecture."""
        return arch in self.processors or (arch == "wasm32" and self.format == "wasm")


_LINUX_PROCESSORS = {
    "x86_64": "cpu_x86.c", "aarch64": "cpu_arm_linux.c", "armv7": "cpu_arm_linux.c",
    "riscv64": "cpu_riscv_linux.c",
}  # fmt: skip
LINUX = System(
    "Linux",
    ("linux",),
    "platform_posix.c",
    _LINUX_PROCESSORS,
    ("-fPIC",),
    "lib{}.so",
    host="Linux",
    eabi=True,
)
# Pages of memory have 16 KiB on newer devices. Names that the C library lacks are errors when a library is
# linked, not when it is loaded.
_ANDROID = System(
    "Android", ("android",), "platform_posix.c", {k: _LINUX_PROCESSORS[k] for k in ("x86_64", "aarch64")},
    ("-fPIC",), "lib{}.so", runner="bionic", packages={"aar": "{}.aar"}, libcs=("bionic",), oldest=24,
    link=("-Wl,-z,max-page-size=16384", "-Wl,-z,defs", "-Wl,--as-needed"), sysroot="android",
    form=r"linux-android(eabi)?\d*", example="linux-android24",
)  # fmt: skip
_DARWIN_PROCESSORS = {"aarch64": "cpu_arm_darwin.c", "x86_64": "cpu_x86.c"}
_DARWIN_FLAGS = ("-fPIC", "-D_DARWIN_C_SOURCE")  # else POSIX names hide the number of processors
_MACOS = System(
    "macOS", ("macos", "darwin"), "platform_posix.c", _DARWIN_PROCESSORS, _DARWIN_FLAGS, "lib{}.dylib",
    format="macho", runner="local", remove="-Wl,-dead_strip",
    packages={"xcframework": "{}.xcframework.zip"}, libcs=("libSystem",), host="Darwin",
    form=r"(macosx?|darwin)[\d.]*", example="macos12.0",
)  # fmt: skip
# zig 0.17 crashes when it links for devices, and has no names of their C library.
_IOS = replace(
    _MACOS, name="iOS", words=("ios",), shared=None, host=None, headers="any-darwin-any",
    link=("-nostdlib", "-Wl,-undefined,dynamic_lookup"), links_as="-simulator",
    form=r"ios[\d.]*", example="ios15.0",
)  # fmt: skip
_IOS_SIMULATOR = replace(
    _IOS, name="the iOS simulator", words=("simulator",), links_as="",
    form=r"ios[\d.]*-simulator", example="ios15.0-simulator",
)  # fmt: skip
_WINDOWS = System(
    "Windows", ("windows",), "platform_windows.c", {"x86_64": "cpu_x86.c"}, shared="{}.dll", format="coff",
    runner="wine", keeps_processor=True, program=".exe", libcs=("mingw",),
    form="windows-gnu", example="windows-gnu",
)  # fmt: skip
_WASI = System(
    "WebAssembly", ("wasi",), "platform_stdio.c",
    threads=False, format="wasm", runner="wasi", packages={"npm": "{}.npm.tgz"}, libcs=("wasi",),
    form="wasi", example="wasi",
)  # fmt: skip
# A triple that begins with the architecture and ends with the ABI alone has no system.
NONE = System(
    "none",
    (),
    processors={"x86_64": "cpu_x86.c", "arm_m": "cpu_bare.c", "riscv32": "cpu_bare.c"},
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
    libcs=("newlib", "none"),
    host="Linux",
)
SYSTEMS = (_WASI, _WINDOWS, _ANDROID, _IOS_SIMULATOR, _IOS, _MACOS, LINUX)


def system_of(triple: str, deployment: str) -> System:
    """The system of an LLVM triple; NONE for a freestanding target, and Linux where no other fits."""
    return NONE if deployment == "freestanding" else known_system(triple) or LINUX


def known_system(triple: str) -> System | None:
    """The system that a triple names, LLVM's or zig's; None: none that Kiln knows."""
    words = triple.split("-")
    if words[0].startswith("wasm"):
        return _WASI
    return next((system for system in SYSTEMS if any(p.startswith(system.words) for p in words[1:])), None)
