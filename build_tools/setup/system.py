"""The system packages that Kiln's own tests need: installed where that is allowed, else named in one line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

# What the tests run → the Debian and Ubuntu package that holds it.
NEEDED = {
    "qemu-aarch64": "qemu-user",
    "qemu-system-aarch64": "qemu-system-arm",
    "qemu-system-arm": "qemu-system-arm",
    "ssh": "openssh-client",
    "adb": "adb",
    "gcc": "gcc",
    "g++": "g++",
    "clang": "clang",
    "make": "make",
    "cmake": "cmake",
    "pkg-config": "pkg-config",
    "valgrind": "valgrind",
    "git": "git",
}


def missing() -> dict[str, str]:
    """Programs that cannot be found, with their packages."""
    lacking = {program: package for program, package in NEEDED.items() if shutil.which(program) is None}
    clang = shutil.which("clang")
    if clang:
        told = subprocess.run([clang, "-print-resource-dir"], capture_output=True, text=True)
        resources = Path(told.stdout.strip())
        if not any(resources.glob("lib/*/libclang_rt.asan*")):
            lacking["clang's sanitizers"] = f"libclang-rt-{resources.name.split('.')[0]}-dev"
    return lacking


def install_command() -> list[str] | None:
    """How to run apt-get as root without being asked for anything, or None."""
    if shutil.which("apt-get") is None:
        return None
    if os.geteuid() == 0:
        return ["apt-get"]
    if shutil.which("sudo") and subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode == 0:
        return ["sudo", "-n", "apt-get"]
    return None


def install(apt: list[str], packages: list[str]) -> None:
    """Install the packages; what fails shows when the programs are looked for again."""
    print(f"kiln: installing {' '.join(packages)}", file=sys.stderr, flush=True)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run([*apt, "update", "-q"], env=environment, **quiet)  # type: ignore[call-overload]
    subprocess.run([*apt, "install", "-y", "-q", *packages], env=environment, **quiet)  # type: ignore[call-overload]


def main(chosen_tests: list[str]) -> int:
    """0 when everything is there. Without it 2 for a run of all tests; a part of them may still go on."""
    lacking = missing()
    apt = install_command() if lacking else None
    for _ in range(2):  # what goes with clang is known once clang is there
        if apt and lacking:
            install(apt, sorted(set(lacking.values())))
            lacking = missing()
    if not lacking:
        return 0
    packages = " ".join(sorted(set(lacking.values())))
    part = any(not argument.startswith("-") for argument in chosen_tests)
    print(
        f"kiln: {'warning' if part else 'error'}: the tests need {', '.join(lacking)}; install with: "
        f"sudo apt-get install {packages}",
        file=sys.stderr,
    )
    return 0 if part else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
