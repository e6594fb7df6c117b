"""A root file system in memory: files of Debian packages and a few of our own, as Linux wants them at boot.

The archive ("newc" of cpio) is written here, entry by entry, so that its files belong to root and it holds a
console, whoever runs the tests.
"""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

# Drivers of the emulated machine's network card and what they need, in the order of loading.
MODULES = ("virtio", "virtio_ring", "virtio_mmio", "failover", "net_failover", "virtio_net")

INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts
mount -t devpts pts /dev/pts
for module in {modules}; do insmod /modules/$module.ko; done
hostname kiln-board
ip link set lo up
ip addr add 10.0.2.15/24 dev eth0
ip link set eth0 up
mount -t tmpfs -o size=96m,mode=755 data /data
mount -t tmpfs -o size=1m small /small
mount -t tmpfs -o size=8m inodes /inodes
mount -t tmpfs -o ro sealed /sealed
chmod 1777 /tmp
dropbearkey -t ed25519 -f /etc/dropbear/key | grep '^ssh-' >/dev/console
dropbear -s -r /etc/dropbear/key
echo kiln-board is up >/dev/console
exec sh -c 'while :; do sleep 1000; done'
"""
FOLDERS = (
    "bin", "data", "dev", "etc", "etc/dropbear", "inodes", "modules", "proc", "root", "root/.ssh", "run",
    "sealed", "small", "sys", "tmp", "usr", "usr/bin", "usr/sbin", "var", "var/tmp",
)  # fmt: skip
# Each with another login shell, all of them allowed everything.
USERS = {"root": "/bin/sh", "tcsh": "/bin/tcsh", "fish": "/usr/bin/fish"}


def unpack(packages: list[Path], folder: Path) -> None:
    """The packages' files, below `folder`."""
    for package in packages:
        subprocess.run(["dpkg-deb", "-x", str(package), str(folder)], check=True)


def kernel(folder: Path) -> Path:
    """The kernel of unpacked packages."""
    (image,) = (folder / "boot").glob("vmlinuz-*")
    return image


def write(folder: Path, out: Path, authorized: bytes) -> None:
    """The archive of what `folder`'s packages hold that the machine needs; USERS are whoever has that key."""
    modules = {path.stem: path for path in folder.glob("lib/modules/**/*.ko")}
    archive = Archive()
    for name in FOLDERS:
        archive.folder(name)
    archive.device("dev/console", 5, 1)
    for name in MODULES:
        archive.file(f"modules/{name}.ko", modules[name].read_bytes())
    archive.file("bin/busybox", (folder / "bin/busybox").read_bytes(), 0o755)
    for name in ("usr/sbin/dropbear", "usr/bin/dropbearkey", "bin/tcsh", "usr/bin/fish"):
        archive.file(name, (folder / name).read_bytes(), 0o755)
    for path in [*folder.glob("lib/aarch64-linux-gnu/*"), *folder.glob("usr/lib/aarch64-linux-gnu/*.so*")]:
        archive.copy(path, folder)
    archive.copy(folder / "lib/ld-linux-aarch64.so.1", folder)
    users = "".join(f"{name}:x:0:0:{name}:/root:{shell}\n" for name, shell in USERS.items())
    archive.file("etc/passwd", users.encode())
    archive.file("etc/shells", "".join(f"{shell}\n" for shell in USERS.values()).encode())
    archive.file("root/.ssh/authorized_keys", authorized, 0o600)
    archive.file("init", INIT.format(modules=" ".join(MODULES)).encode(), 0o755)
    out.write_bytes(archive.finish())


class Archive:
    """A cpio archive of the kind "newc": for each entry a hexadecimal header, its name, its content."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._entries = 0
        self._folders: set[str] = set()

    def folder(self, name: str) -> None:
        if name not in self._folders:
            self._folders.add(name)
            self._add(name, stat.S_IFDIR | (0o700 if name.startswith("root") else 0o755), b"")

    def file(self, name: str, content: bytes, mode: int = 0o644) -> None:
        self._parents(name)
        self._add(name, stat.S_IFREG | mode, content)

    def device(self, name: str, major: int, minor: int) -> None:
        self._add(name, stat.S_IFCHR | 0o600, b"", major, minor)

    def copy(self, path: Path, root: Path) -> None:
        """A file or a link, with its place below `root`; a folder is left out."""
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            self._parents(name)
            self._add(name, stat.S_IFLNK | 0o777, str(path.readlink()).encode())
        elif path.is_file():
            self.file(name, path.read_bytes(), 0o755)

    def finish(self) -> bytes:
        self._add("TRAILER!!!", 0, b"")
        return b"".join(self._parts)

    def _parents(self, name: str) -> None:
        for parent in reversed(Path(name).parents[:-1]):
            self.folder(parent.as_posix())

    def _add(self, name: str, mode: int, content: bytes, major: int = 0, minor: int = 0) -> None:
        self._entries += 1
        label = name.encode() + b"\0"
        fields = (self._entries, mode, 0, 0, 1, 0, len(content), 0, 0, major, minor, len(label), 0)
        header = b"070701" + b"".join(b"%08X" % value for value in fields) + label
        self._parts += [header, bytes(-len(header) % 4), content, bytes(-len(content) % 4)]
