"""Runs programs for Android in QEMU's user-mode emulation, or natively, with glibc in place of bionic.

No system for Android is needed: programs and libraries are those that a device gets, byte for byte. The
loader of glibc loads them, with a libc.so (device/programs/bionic.c) that defines what glibc lacks and needs
glibc itself. So kernels, threads, files and detection of the processor run as they are; what is not tested is
Android's own loader and C library, for which a device is needed (`device=`).
"""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from pathlib import Path

from kiln.config import Target
from kiln.device.check.runners.local import LocalRunner, checked_emulator
from kiln.device.check.runners.qemu_user import sysroot
from kiln.device.link import PROGRAMS
from kiln.errors import KilnError
from kiln.files import atomic_write
from kiln.paths import cache_dir
from kiln.scratch import scratch_folder
from kiln.toolchain import run, zig_command

_NAMES = PROGRAMS / "bionic.c"
_GLIBC = "2.17"
_LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}


def open_runner(target: Target) -> LocalRunner:
    """The runner of targets for Android.

    Raises KilnError where the emulator is missing or too old, and where its processor's glibc is missing.
    """
    emulator, path = checked_emulator(target)
    sysroot_flags = sysroot(target)
    root = Path(sysroot_flags[-1]) if sysroot_flags else Path("/")
    places_of_loader = [root / folder / _LOADERS[target.arch] for folder in ("lib64", "lib")]
    loader = next((path for path in places_of_loader if path.is_file()), None)
    if loader is None:
        raise KilnError(
            f"target '{target.name}': {root} has no loader of glibc, which runs its programs here"
        )
    libraries = f"{names(target.arch)}:{root / 'lib'}" if sysroot_flags else str(names(target.arch))
    return LocalRunner(
        f"{' '.join([emulator.command, *emulator.args])}, glibc in place of bionic",
        [path, *emulator.args, *sysroot_flags, str(loader), "--library-path", libraries],
        emulator.env,
    )


def names(arch: str) -> Path:
    """A folder with libc.so and libm.so, for glibc's loader, in the user's cache."""
    command = [*zig_command(), "cc", "-target", f"{arch}-linux-gnu.{_GLIBC}", "-O2", "-shared", "-fPIC"]
    key = "\0".join([version("ziglang"), *command[1:], _NAMES.read_text(encoding="utf-8")])
    folder = cache_dir() / "bionic" / hashlib.sha256(key.encode()).hexdigest()[:16]
    libraries = {"libm.so": ["-x", "c", "/dev/null", "-Wl,--no-as-needed", "-lm"], "libc.so": [str(_NAMES)]}
    for name, arguments in libraries.items():
        if not (folder / name).is_file():
            with scratch_folder("bionic") as work:
                library = Path(work, name)
                words = [*command, f"-Wl,-soname,{name}", *arguments, "-o", str(library)]
                run(words, f"compiling {name} for '{arch}'")
                atomic_write(folder / name, library.read_bytes())
    return folder
