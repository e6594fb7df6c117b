"""Systems with nothing but Python: Debian and Ubuntu, made from their archives, with a copy of the project.

1. mmdebstrap makes the smallest system that has python3, once for each suite; a tar file of it is kept in
   Kiln's cache. apt checks the archive's signature with Debian's keys or, for Ubuntu, with keys out of a
   package whose SHA-256 stands here.
2. A `System` is unpacked from it, with a copy of the project and a user who is not root.
3. Commands run there in a mount and process namespace of their own: whatever happens, nothing stays mounted
   and no process is left. /proc/cpuinfo says that the processor is an x86-64-v3 without any extension,
   and cores are as the machine has them.

Needs root, Linux and mmdebstrap.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kiln.config.host import LEVELS
from kiln.packages import missing_program
from kiln.paths import cache_dir

ROOT = Path(__file__).resolve().parents[2]
USER = "somebody"
DEBIAN_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
UBUNTU = "http://archive.ubuntu.com/ubuntu"
UBUNTU_KEYS = (
    "pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb",
    "36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8",
)
# What a network behind a proxy needs; PIP_FIND_LINKS names folders that are not there.
SETTINGS = re.compile(r"(?!PIP_FIND_LINKS$)(PIP_.*|.*_(proxy|PROXY)|SSL_CERT_(FILE|DIR))")
_NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
FILES = ("/etc/resolv.conf", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")


class CannotMakeError(Exception):
    """The message says why systems cannot be made here."""


@dataclass(frozen=True)
class Suite:
    """A release of a distribution: its archive, the components with the packages, and the signing keys."""

    name: str
    archive: str
    components: str
    keys: Path


def debian(name: str) -> Suite:
    """A release of Debian. Raises CannotMakeError where Debian's keys are not installed."""
    if not DEBIAN_KEYS.is_file():
        raise CannotMakeError(f"{DEBIAN_KEYS} is missing: the package debian-archive-keyring has it")
    return Suite(name, "http://deb.debian.org/debian", "main", DEBIAN_KEYS)


def newest_ubuntu(candidates: Sequence[str]) -> Suite:
    """The first of the releases that Ubuntu's archive has. Raises CannotMakeError where it cannot be read."""
    for name in candidates:
        try:
            with urllib.request.urlopen(f"{UBUNTU}/dists/{name}/InRelease", timeout=60):
                return Suite(name, UBUNTU, "main,universe", _ubuntu_keys())
        except urllib.error.HTTPError:
            continue
        except OSError as error:
            raise CannotMakeError(f"{UBUNTU} cannot be reached: {error}") from error
    raise CannotMakeError(f"{UBUNTU} has none of {', '.join(candidates)}")


def _ubuntu_keys() -> Path:
    path, digest = UBUNTU_KEYS
    folder = _cache() / "ubuntu-keyring"
    keyring = folder / "usr/share/keyrings/ubuntu-archive-keyring.gpg"
    if not keyring.is_file():
        with urllib.request.urlopen(f"{UBUNTU}/{path}", timeout=60) as answer:
            content: bytes = answer.read()
        if hashlib.sha256(content).hexdigest() != digest:
            raise CannotMakeError(f"{UBUNTU}/{path}: its SHA-256 is not {digest}")
        package = folder.with_suffix(".deb")
        package.write_bytes(content)
        subprocess.run(["dpkg-deb", "-x", str(package), str(folder)], check=True)
    return keyring


def _cache() -> Path:
    folder = cache_dir() / "clean-root"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _check_rights() -> None:
    """Raises CannotMakeError where this user, or the container that this is, may not mount file systems."""
    if sys.platform != "linux" or os.geteuid() != 0:
        raise CannotMakeError("only root may make a system of its own")
    tried = subprocess.run(
        [*_NAMESPACES, "mount", "-t", "tmpfs", "none", "/tmp"], capture_output=True, text=True
    )
    if tried.returncode:
        raise CannotMakeError(f"root may not mount anything here: {tried.stderr.strip()}")


def _base(suite: Suite) -> Path:
    """A tar file of the suite's smallest system with Python, made if it is not there."""
    archive = _cache() / f"{suite.name}.tar"
    if not archive.is_file():
        if shutil.which("mmdebstrap") is None:
            raise CannotMakeError(missing_program("mmdebstrap"))
        unfinished = archive.with_suffix(".partial.tar")
        command = ["mmdebstrap", "--mode=root", "--variant=minbase", "--include=apt,python3,ca-certificates"]
        command += [f"--components={suite.components}", f"--keyring={suite.keys}", suite.name]
        # Keys in root's own cache are not for the user that apt becomes by itself.
        command.insert(1, '--aptopt=APT::Sandbox::User "root"')
        done = subprocess.run([*command, str(unfinished), suite.archive], capture_output=True, text=True)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.startswith("E:")]
            raise CannotMakeError(f"mmdebstrap {suite.name}: {' '.join(errors)[:300]}")
        os.replace(unfinished, archive)
    return archive


@dataclass(frozen=True)
class System:
    """A system in a folder. The project is in /kiln there, and belongs to USER."""

    folder: Path

    @staticmethod
    def make(suite: Suite, folder: Path) -> System:
        """Unpack a system, and put the project there. Raises CannotMakeError."""
        _check_rights()
        base = _base(suite)
        folder.mkdir(parents=True)
        subprocess.run(["tar", "-C", str(folder), "-xf", str(base)], check=True)
        for name in FILES:
            if Path(name).is_file():
                path = folder / name.lstrip("/")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)
                shutil.copyfile(name, path)
        _copy_project(folder / "kiln")
        (folder / "cpuinfo").write_text(plain_processor(Path("/proc/cpuinfo").read_text(encoding="utf-8")))
        system = System(folder)
        system.check(f"useradd --create-home {USER} && chown -R {USER} /kiln")
        return system

    def run(self, command: str, user: str = "root") -> subprocess.CompletedProcess[str]:
        """Run a line of shell in /kiln."""
        where = str(self.folder)
        mounts = (
            'mount -t proc proc "$0/proc" && mount --bind "$0/cpuinfo" "$0/proc/cpuinfo" && '
            'mkdir -p "$0/dev/shm" && mount -t tmpfs shm "$0/dev/shm" && exec "$@"'
        )
        home = "/root" if user == "root" else f"/home/{user}"
        settings = [f"{name}={value}" for name, value in os.environ.items() if SETTINGS.fullmatch(name)]
        settings += [f"HOME={home}", f"USER={user}", "LANG=C.UTF-8", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
        inside = [
            "chroot",
            f"--userspec={user}",
            where,
            "env",
            "-i",
            *settings,
            "sh",
            "-c",
            f"cd /kiln && {command}",
        ]
        return subprocess.run(
            [*_NAMESPACES, "sh", "-c", mounts, where, *inside],
            capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def check(self, command: str, user: str = "root") -> str:
        """Run a line of shell that must succeed; returns its output."""
        done = self.run(command, user)
        printed = done.stdout + done.stderr
        assert done.returncode == 0, f"{user}: {command}\nexit status {done.returncode}\n{printed[-6000:]}"
        return printed


def plain_processor(cpuinfo: str) -> str:
    """/proc/cpuinfo with no feature of x86-64-v4 or beyond v3 that kernels could be made for."""
    extra = dict(LEVELS)["x86-64-v4"] - dict(LEVELS)["x86-64-v3"]

    def kept(line: str) -> str:
        key, colon, value = line.partition(":")
        if key.strip() != "flags":
            return line
        names = [n for n in value.split() if n not in extra and not n.startswith(("avx512", "avx_", "amx"))]
        return f"{key}{colon} {' '.join(names)}"

    return "\n".join(map(kept, cpuinfo.splitlines())) + "\n"


def _copy_project(place: Path) -> None:
    """Copy all files that git does not ignore; outside of a checkout, all but outputs of builds."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True, text=True,
    )  # fmt: skip
    if listed.returncode:
        shutil.copytree(ROOT, place, ignore=shutil.ignore_patterns(".venv*", "build", ".git"), symlinks=True)
        return
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name)
