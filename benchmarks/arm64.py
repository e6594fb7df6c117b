"""A Python for 64-bit ARM with the peer in it, and the counting plugin: what `instructions` runs under QEMU.

Debian's packages are unpacked into build/bench/arm64, not installed; apt keeps its lists there as well, so
the machine's own settings stay as they are and nobody needs to be root. Wheels come from PyPI.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kiln.errors import KilnError
from kiln.files import atomic_dir, atomic_write
from kiln.packages import missing_program

from benchmarks.contenders import Folders
from benchmarks.plugin import make_plugin
from benchmarks.workers import ROOT, say

DEBIAN = ("python3-minimal", "libpython3-stdlib", "libstdc++6")
WHEELS = ("ai-edge-litert", "numpy", "flatbuffers")
PARTS = {  # QEMU's name → the number that Arm gave it
    "cortex-a35": 0xD04,
    "cortex-a53": 0xD03,
    "cortex-a55": 0xD05,
    "cortex-a57": 0xD07,
    "cortex-a72": 0xD08,
    "cortex-a76": 0xD0B,
}
PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_27_aarch64", "manylinux2014_aarch64")


@dataclass(frozen=True)
class Arm64:
    """The folder of a Python for 64-bit ARM, the plugin that counts, and their versions as text."""

    folder: Path
    plugin: Path
    description: str

    @property
    def root(self) -> Path:
        """The root of the file system that Debian's packages were unpacked to."""
        return self.folder / "root"

    @property
    def packages(self) -> Path:
        """The folder that the wheels were installed to."""
        return self.folder / "packages"

    @property
    def python(self) -> Path:
        """The path of the interpreter."""
        return interpreter(self.root)


def prepare(folders: Folders) -> Arm64:
    """Fetch Python and its wheels and build the plugin, unless they are there. Raises KilnError."""
    emulator = shutil.which("qemu-aarch64")
    if emulator is None:
        raise KilnError(f"instructions: {missing_program('qemu-aarch64')}")
    folder = folders.work / "arm64"
    if not (folder / "root").is_dir():
        _debian(folder)
    pinned = [line for line in _requirements() if line.split("==")[0] in WHEELS]
    listed = folder / "packages.txt"
    if not listed.is_file() or listed.read_text().split() != pinned:
        _wheels(folder, pinned, folders)
        atomic_write(listed, "\n".join(pinned))
    plugin, qemu = make_plugin(emulator, folder)
    packages = ", ".join(line.replace("==", " ") for line in pinned)
    return Arm64(folder, plugin, f"QEMU {qemu}, {packages}")


def describe_processor(root: Path, arguments: Sequence[str]) -> None:
    """Write the files in /proc and /sys that Linux has for the processor in QEMU's option `-cpu NAME`.

    QEMU shows files of `root` in place of this machine's. XNNPACK chooses its kernels by these files, and
    would crash with those of an x86 processor. Raises KilnError for an unknown name.
    """
    name = arguments[arguments.index("-cpu") + 1].partition(",")[0] if "-cpu" in arguments else "none"
    if name not in PARTS:
        raise KilnError(f"emulator: -cpu {name}: instructions are counted for {', '.join(PARTS)}")
    newer = (
        " atomics fphp asimdhp asimdrdm lrcpc dcpop asimddp" if name in ("cortex-a55", "cortex-a76") else ""
    )
    about = {
        "processor": "0",
        "Features": f"fp asimd evtstrm crc32 cpuid{newer}",
        "CPU implementer": "0x41",
        "CPU architecture": "8",
        "CPU variant": "0x0",
        "CPU part": f"{PARTS[name]:#x}",
        "CPU revision": "4",
    }
    atomic_write(root / "proc/cpuinfo", "".join(f"{key}\t: {value}\n" for key, value in about.items()) + "\n")
    for file in ("possible", "present"):
        atomic_write(root / "sys/devices/system/cpu" / file, "0\n")


def interpreter(root: Path) -> Path:
    """The path of the Python that was unpacked to `root`. Raises KilnError if there is none."""
    interpreters = [
        p for p in sorted(root.glob("usr/bin/python3.*")) if re.fullmatch(r"python3\.[0-9]+", p.name)
    ]
    if not interpreters:
        raise KilnError(f"{root}: holds no Python; remove {root.parent} to have it fetched again")
    return interpreters[0]


def _debian(folder: Path) -> None:
    """Unpack Debian's packages, and all packages that they depend on, to `folder`/root."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise KilnError("instructions: Debian's apt-get and dpkg-deb are needed, to fetch a Python for arm64")
    say("fetching a Python for arm64")
    apt = folder / "apt"
    for folder_name in ("lists/partial", "cache/archives/partial"):
        (apt / folder_name).mkdir(parents=True, exist_ok=True)
    status = apt / "status"
    status.touch()
    options = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "",
        "Dir::State::Lists": apt / "lists",
        "Dir::State::status": status,
        "Dir::Cache": apt / "cache",
    }
    words = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    _call(["apt-get", *words, "update", "-qq"])
    tree = ["--recurse", "--no-recommends", "--no-suggests", "--no-conflicts", "--no-breaks", "--no-replaces"]
    dependencies = _call(["apt-cache", *words, "depends", *tree, "--no-enhances", *DEBIAN])
    names = sorted(
        {line for line in dependencies.splitlines() if re.fullmatch(r"[a-z0-9][a-z0-9+.-]*", line)}
    )
    with atomic_dir(folder / "root") as root, atomic_dir(apt / "archives") as archives:
        _call(["apt-get", *words, "download", "-qq", *names], archives)
        for archive in sorted(archives.glob("*.deb")):
            _call(["dpkg-deb", "-x", str(archive), str(root)])
        interpreter(root)
    shutil.rmtree(apt)


def _wheels(folder: Path, pinned: list[str], folders: Folders) -> None:
    """Install the peer and its dependencies for the unpacked Python, in the versions of requirements.txt."""
    version = interpreter(folder / "root").name.removeprefix("python")
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    where = ["--only-binary", ":all:", *platforms, "--python-version", version, "--implementation", "cp"]
    if not folders.python.exists():
        raise KilnError("instructions: the peers' environment is needed: ./kiln bench install --peer litert")
    with atomic_dir(folder / "packages") as packages:
        pip = [str(folders.python), "-m", "pip", "install", "-q", "--no-deps"]
        _call([*pip, "--target", str(packages), *where, *pinned])


def _requirements() -> list[str]:
    lines = (ROOT / "benchmarks/requirements.txt").read_text().splitlines()
    return [line for line in lines if "==" in line]


def _call(command: list[str], where: Path | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=where)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise KilnError(f"{command[0]}: {last}")
    return done.stdout
