"""Debian packages of the system's programs and libraries that Kiln, its tests and its benchmarks use.

This is the only list: error messages take the names from here, `./kiln test` installs from it what is missing
(build_tools/setup/system.py), and a test holds README's list equal to it. The names are those of Debian 12,
of Ubuntu 24.04, and of later releases; where a later release moved a program to another package, SPLIT_OFF
has that one too.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

# Packages that the first use of ./kiln needs; named in messages of ./kiln and of setup/environment.py.
FIRST_USE = ("python3", "python3-venv", "ca-certificates")

# Programs → packages.
PROGRAMS = {
    "adb": "adb",
    "ar": "binutils",
    "cc": "gcc",
    "clang": "clang",
    "cmake": "cmake",
    "g++": "g++",
    "gcc": "gcc",
    "git": "git",
    "ld": "binutils",
    "make": "make",
    "mmdebstrap": "mmdebstrap",
    "nm": "binutils",
    "node": "nodejs",
    "pkg-config": "pkg-config",
    "qemu-aarch64": "qemu-user",
    "qemu-arm": "qemu-user",
    "qemu-riscv64": "qemu-user",
    "qemu-system-aarch64": "qemu-system-arm",
    "qemu-system-arm": "qemu-system-arm",
    "qemu-system-riscv32": "qemu-system-misc",
    "qemu-x86_64": "qemu-user",
    "readelf": "binutils",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "valgrind": "valgrind",
}
# Programs → packages of releases that took the program out of the one in PROGRAMS: of Debian 13, in which
# qemu-system-misc still depends on the new package, and of releases with QEMU 11, in which it does not.
SPLIT_OFF = {"qemu-system-riscv32": "qemu-system-riscv"}
# Programs of tests that only `./kiln test all` runs, and skips without them → packages. They are large,
# or not there on some systems: Ubuntu's package chromium installs a snap, which containers cannot do.
FOR_ALL_TESTS = {
    "chromium": "chromium", "fish": "fish", "java": "default-jdk-headless",
    "javac": "default-jdk-headless", "softhsm2-util": "softhsm2", "wine": "wine",
}  # fmt: skip
# Shared libraries that backends' wheels load, by soname → packages.
LIBRARIES = {"libgomp.so.1": "libgomp1", "libstdc++.so.6": "libstdc++6"}
# Files → packages: the keys with which Debian's packages for an emulated machine are checked.
FILES = {"/usr/share/keyrings/debian-archive-keyring.gpg": "debian-archive-keyring"}
# Architecture → package with its C library, which programs under user-mode QEMU load.
CROSS_LIBC = {
    "aarch64": "libc6-arm64-cross", "armv7": "libc6-armhf-cross", "riscv64": "libc6-riscv64-cross",
    "x86_64": "libc6-amd64-cross",
}  # fmt: skip
# Architecture → Debian's name for it.
DEBIAN_ARCH = {"x86_64": "amd64", "aarch64": "arm64", "armv7": "armhf", "riscv64": "riscv64"}
# Programs on every Debian and Ubuntu: those of the essential packages, of apt and of mount.
EVERYWHERE = frozenset({
    "apt-cache", "apt-get", "bash", "cat", "chroot", "cmp", "dpkg-deb", "echo", "mount", "nohup", "printf",
    "rm", "setpriv", "sh", "sha256sum", "sleep", "tar", "taskset", "touch", "umount", "unshare",
})  # fmt: skip
# Programs of packages from PyPI, which the user of a feature installs: its error message says how.
OF_PYPI = frozenset({"pyocd"})


def package_of(program: str) -> str | None:
    """The package that contains a program; None if it is not known or the program is part of every system."""
    known = PROGRAMS.get(program) or FOR_ALL_TESTS.get(program)
    newer = SPLIT_OFF.get(program)
    if newer and _is_offered(newer):
        return newer
    emulates = program.startswith("qemu-") and not program.startswith("qemu-system-")
    return "qemu-user" if known is None and emulates else known


def _is_offered(package: str) -> bool:
    """Whether this system's apt knows a package; False without apt or before its lists are loaded."""
    if shutil.which("apt-cache") is None:
        return False
    return subprocess.run(["apt-cache", "show", package], capture_output=True).returncode == 0


def how_to_install(*packages: str) -> str:
    """The end of an error message: the command that installs packages."""
    return f"install {'it' if len(packages) == 1 else 'them'} with: sudo apt-get install {' '.join(packages)}"


def missing_program(program: str) -> str:
    """`'PROGRAM' is not installed`, with the command that installs it where its package is known."""
    package = package_of(program)
    return f"'{program}' is not installed" + (f"; {how_to_install(package)}" if package else "")


def sysroot_name(triple: str) -> str:
    """GNU system name of an LLVM triple: without the vendor, and with `arm` for all 32-bit ARM versions.

    Programs for Android run with glibc here.
    """
    arch, *words = triple.split("-")
    if len(words) > 2:
        words = words[1:]
    words = ["gnu" if part.startswith("android") else part for part in words]
    return "-".join(["arm" if arch.startswith("arm") else arch, *words])


def cross_libc(arch: str, triple: str, root: Path = Path("/usr")) -> tuple[Path, str | None]:
    """The folder with another architecture's C library, for QEMU's -L, and the missing package or None.

    `root`: where packages install the folder. The package is None if the folder has a dynamic loader.
    """
    folder = root / sysroot_name(triple)
    return folder, None if any(folder.glob("lib*/ld-*.so*")) else CROSS_LIBC[arch]


def sanitizers_of(clang: str) -> str | None:
    """The package with the run-time libraries of clang's sanitizers; None if they are installed.

    `clang`: path of the clang program; the package's name contains its version.
    """
    result = subprocess.run([clang, "-print-resource-dir"], capture_output=True, text=True)
    resources = Path(result.stdout.strip())
    if all(any(resources.glob(f"lib/*/libclang_rt.{name}*")) for name in ("asan", "fuzzer")):
        return None
    return f"libclang-rt-{resources.name.split('.')[0]}-dev"
