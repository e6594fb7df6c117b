"""The emulated machine: started once, reached through ssh on a loopback port, by an ssh configuration."""

from __future__ import annotations

import selectors
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kiln.paths import cache_dir

from . import initramfs

PACKAGES = Path(__file__).resolve().parents[3] / "build_tools/setup/arm64_packages.py"
BOOT_SECONDS = 120  # two seconds where nothing else runs


class Machine:
    """A running machine. `ssh_config` knows it as `board`; `via` makes a configuration for another port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = _free_port()
        self._ways = 0
        archive = folder / "initrd"
        root = folder / "root"
        initramfs.unpack(_packages(), root)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key")], check=True)
        initramfs.write(root, archive, (folder / "key.pub").read_bytes())
        card = f"user,id=card,restrict=on,hostfwd=tcp:127.0.0.1:{self.port}-:22"
        self._process = subprocess.Popen(
            [
                "qemu-system-aarch64", "-machine", "virt", "-cpu", "cortex-a72", "-smp", "2", "-m", "512",
                "-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio",
                "-kernel", str(initramfs.kernel(root)), "-initrd", str(archive),
                "-append", "console=ttyAMA0 rdinit=/init quiet",
                "-netdev", card, "-device", "virtio-net-device,netdev=card",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            self.host_key = self._boot()
        except BaseException:
            self.stop()
            raise
        self.ssh_config = self.via(self.port)

    def via(self, port: int, host_key: str | None = None, key: str = "key") -> Path:
        """An ssh configuration that reaches the machine through `port` and expects `host_key`."""
        self._ways += 1
        keys, config = self.folder / f"known_hosts{self._ways}", self.folder / f"ssh_config{self._ways}"
        keys.write_text(f"board {host_key or self.host_key}\n" if host_key != "" else "")
        config.write_text(
            f"Host board\n HostName 127.0.0.1\n Port {port}\n User root\n IdentityFile {self.folder / key}\n"
            f" IdentitiesOnly yes\n IdentityAgent none\n HostKeyAlias board\n UserKnownHostsFile {keys}\n"
            # What a careless user might have set: it must not weaken anything.
            " GlobalKnownHostsFile /dev/null\n StrictHostKeyChecking no\n ForwardAgent yes\n"
        )
        return config

    def ssh(self, script: str, *words: str) -> str:
        """Run a script on the machine, not through Kiln."""
        text = shlex.join(["sh", "-c", script, "sh", *words])
        done = subprocess.run(
            ["ssh", "-F", str(self.ssh_config), "-o", "StrictHostKeyChecking=yes", "board", text],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def stop(self) -> None:
        """Switch it off."""
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _boot(self) -> str:
        """Wait until the ssh server runs; its host key, as the console shows it."""
        assert self._process.stdout is not None
        key, console = "", b""
        end = time.monotonic() + BOOT_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"kiln-board is up" not in console:
                left = end - time.monotonic()
                ready = selector.select(left) if left > 0 else []
                block = self._process.stdout.read1(65536) if ready else b""  # type: ignore[attr-defined]
                assert block, f"the machine did not start: {console.decode(errors='replace')[-2000:]}"
                console += block
        for line in console.decode(errors="replace").splitlines():
            if line.startswith("ssh-ed25519 "):
                key = " ".join(line.split()[:2])
        assert key
        return key


def _packages() -> list[Path]:
    """Skips the tests that need them where they cannot be had."""
    for program in ("qemu-system-aarch64", "ssh", "ssh-keygen", "dpkg-deb"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    folder = cache_dir() / "debian-arm64"
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, str(PACKAGES), str(folder)], check=False, capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(done.stderr.strip())
    return [Path(line) for line in done.stdout.splitlines()]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
