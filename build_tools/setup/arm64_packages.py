"""Fetch Debian's arm64 packages, without root, for the emulated machine of the tests.

apt downloads them, with its own package lists and cache below the given folder, so that Debian's signatures
are checked. The package lists and packages of this machine stay unchanged.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

MIRROR = "http://deb.debian.org/debian"
SUITE = "bookworm"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# The kernel for virtual machines has a third of the size of the usual kernel. This metapackage depends on the
# package with the version in its name.
KERNEL = "linux-image-cloud-arm64"
PACKAGES = (
    "busybox-static",
    "dropbear-bin",
    "libc6",
    "libcrypt1",
    "libtomcrypt1",
    "libtommath1",
    "libgmp10",
    "zlib1g",
    # Login shells that are not POSIX shells, and their dependencies.
    "tcsh",
    "fish",
    "libgcc-s1",
    "libpcre2-32-0",
    "libstdc++6",
    "libtinfo6",
)


class PackagesMissing(Exception):  # noqa: N818
    """The packages cannot be fetched on this machine; the message contains the reason."""


def fetch(folder: Path) -> list[Path]:
    """Download the packages into `folder`, unless they are there already; returns their paths.

    Raises PackagesMissing where apt-get, dpkg-deb, Debian's keys or the packages are missing.
    """
    wanted = folder / "complete"
    if wanted.is_file():
        names = wanted.read_text(encoding="utf-8").splitlines()
        known = {name.partition("_")[0] for name in names}
        if known.issuperset(PACKAGES) and all((folder / name).is_file() for name in names):
            return [folder / name for name in names]
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None or not KEYRING.is_file():
        raise PackagesMissing(
            f"apt-get, dpkg-deb or {KEYRING} is missing: Debian's arm64 packages cannot be fetched"
        )
    _apt(folder, "update", "-q")
    told = _apt(folder, "show", KERNEL, program="apt-cache")
    depends = next((line for line in told.splitlines() if line.startswith("Depends:")), "")
    kernel = depends.removeprefix("Depends:").split("(")[0].split(",")[0].strip()
    if not kernel.startswith("linux-image-"):
        raise PackagesMissing(f"{MIRROR} has no {KERNEL} for arm64")
    for old in folder.glob("*.deb"):
        old.unlink()
    _apt(folder, "download", "-q", *(f"{name}:arm64" for name in (kernel, *PACKAGES)))
    found = sorted(path.name for path in folder.glob("*.deb"))
    wanted.write_text("".join(f"{name}\n" for name in found), encoding="utf-8")
    return [folder / name for name in found]


def _apt(folder: Path, *words: str, program: str = "apt-get") -> str:
    for name in ("lists/partial", "cache/archives/partial", "none"):
        (folder / "apt" / name).mkdir(parents=True, exist_ok=True)
    sources, status = folder / "apt" / "sources.list", folder / "apt" / "status"
    sources.write_text(f"deb [arch=arm64 signed-by={KEYRING}] {MIRROR} {SUITE} main\n", encoding="utf-8")
    status.touch()
    own = {
        "APT::Architecture": "arm64",
        "APT::Sandbox::User": "",
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
        "Dir::State": folder / "apt",
        "Dir::State::status": status,
        "Dir::Cache": folder / "apt" / "cache",
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": folder / "apt" / "none",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": folder / "apt" / "none",
    }
    options = [word for key, value in own.items() for word in ("-o", f"{key}={value}")]
    done = subprocess.run(
        [program, *options, *words],
        check=False,
        cwd=folder,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("E:")] or ["no reason given"]
        raise PackagesMissing(f"{program} {words[0]}: {lines[0]}")
    return done.stdout


if __name__ == "__main__":
    try:
        for package in fetch(Path(sys.argv[1]).resolve()):
            print(package)
    except (PackagesMissing, OSError, subprocess.TimeoutExpired) as problem:
        print(f"kiln: error: {problem}", file=sys.stderr)
        sys.exit(2)
