"""System packages that Kiln's own tests need: installed where this is allowed, else listed in one line.

1. Missing packages are determined from kiln.packages, from the C libraries of the targets in `targets/`, and
   from the version of the installed clang.
2. As root, or where sudo needs no password, apt-get loads its lists, which tell where this release has a
   program, and installs the packages. Step 1 and 2 are repeated once: the package of clang's sanitizers is
   known only when clang is installed.
3. Packages that are still missing end a run of the gate, or of all tests, with one line. For a run of
   selected tests this is only a warning, since the tests may not need them; so it is for those of
   kiln.packages.FOR_ALL_TESTS, which are installed for `./kiln test all` alone.

    system.py LAYER [PYTEST'S ARGUMENT]...
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from kiln import packages
from kiln.config import list_targets, load_target
from kiln.device.check.host_cpu import loads_foreign_libc

WAIT_FOR_OTHERS = 600  # seconds to wait for another running apt-get


def missing() -> dict[str, str]:
    """Missing programs, files and libraries, each with the name of its Debian package."""
    programs = [name for name in packages.PROGRAMS if shutil.which(name) is None]
    lacking = {name: packages.package_of(name) or packages.PROGRAMS[name] for name in programs}
    lacking |= {path: package for path, package in packages.FILES.items() if not Path(path).exists()}
    lacking |= {name: package for name, package in packages.LIBRARIES.items() if not _loads(name)}
    for target in (load_target(one.name) for one in list_targets()):
        if loads_foreign_libc(target):
            _, package = packages.cross_libc(target.arch, target.triple)
            if package:
                lacking[f"{target.libc.name} for {target.arch}"] = package
    clang = shutil.which("clang")
    package = clang and packages.sanitizers_of(clang)
    if package:
        lacking["clang's sanitizers"] = package
    return lacking


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def apt_get() -> list[str] | None:
    """Command that runs apt-get as root without a prompt; None where this is not possible."""
    if shutil.which("apt-get") is None:
        return None
    if os.geteuid() == 0:
        return ["apt-get"]
    if shutil.which("sudo") and subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode == 0:
        return ["sudo", "-n", "apt-get"]
    return None


def install(apt: list[str], lacking: Callable[[], dict[str, str]], update: bool = True) -> str:
    """Install the packages that `lacking` returns after apt-get has loaded its lists, where `update` is set.

    Returns apt-get's error message where it fails, else the empty string.
    """
    wait = f"DPkg::Lock::Timeout={WAIT_FOR_OTHERS}"
    reason = ""
    for action in ("update", "install") if update else ("install",):
        words = [action]
        if action == "install":
            names = sorted(set(lacking().values()))
            print(f"kiln: installing {' '.join(names)}", file=sys.stderr, flush=True)
            # Recommended ones are 400 more, such as a desktop's libraries for QEMU's window.
            words += ["-y", "--no-install-recommends", *names]
        done = subprocess.run(
            [*apt, "-q", "-o", wait, *words],
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
        )
        if done.returncode:
            told = [line for line in done.stderr.splitlines() if line.startswith("E:")]
            reason = f"apt-get {action}: {(told or ['E: no reason given'])[0].removeprefix('E:').strip()}"
    return reason


def complaint(lacking: dict[str, str], reason: str) -> str:
    """One line: what is missing, the reason why it could not be installed, the command to install it."""
    names = " ".join(sorted(set(lacking.values())))
    # In a container there is often no sudo, so the command must do without it.
    command = f"sudo apt-get install {names}" if shutil.which("sudo") else f"as root: apt-get install {names}"
    because = f" ({reason})" if reason else ""
    return f"the tests need {', '.join(lacking)}{because}; install with: {command}"


def extra() -> dict[str, str]:
    """Missing programs of FOR_ALL_TESTS, each with the name of its Debian package."""
    return {name: package for name, package in packages.FOR_ALL_TESTS.items() if shutil.which(name) is None}


def main(layer: str, chosen_tests: list[str]) -> int:
    """Install what is missing for the tests of a layer; returns the exit status.

    0 when nothing is missing, or with a warning for a run of selected tests; 2 for a run of a whole layer.
    """
    lacking, reason = missing(), ""
    apt = apt_get() if lacking else None
    for update in (True, False):
        if apt and lacking:
            reason = install(apt, missing, update)
            lacking = missing()
    part = any(not argument.startswith("-") for argument in chosen_tests)
    if layer == "all" and not part and (more := extra()):
        apt = apt_get()
        why = install(apt, extra) if apt else ""
        if more := extra():
            print(f"kiln: warning: {complaint(more, why)}; they are skipped", file=sys.stderr)
    if not lacking:
        return 0
    print(f"kiln: {'warning' if part else 'error'}: {complaint(lacking, reason)}", file=sys.stderr)
    return 0 if part else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
