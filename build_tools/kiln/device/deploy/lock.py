"""A lock that admits one host at a time to a device: a folder, since mkdir succeeds for exactly one host.

The host that holds the lock writes a new count into the folder every few seconds. Another host waits; when
the count has not changed for long enough, by the waiting host's own clock, the holder is considered gone and
its lock is removed. For a holder on this machine, the waiting host checks instead whether the process still
exists, so that it does not wait for a build that was killed.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import socket
import sys
import threading
import time
from pathlib import Path

from kiln.device.deploy import script
from kiln.device.deploy.transports import AFTER, Transport, printable
from kiln.errors import KilnError

BEAT = 5.0  # seconds between heartbeats
SILENCE = 45.0  # seconds without a heartbeat after which a host counts as gone
PATIENCE = 120.0  # seconds to wait for a host with a heartbeat


class Lock:
    """The lock on a device's folder, held from `take` until `release`.

    Scripts compare `token` with the token in the lock's folder before they change anything.
    """

    def __init__(self, transport: Transport, root: str) -> None:
        self._transport, self._root = transport, root
        self.token = secrets.token_hex(16)
        self._ended = threading.Event()
        self._beating: threading.Thread | None = None

    def take(self, patience: float = PATIENCE, silence: float = SILENCE) -> None:
        """Wait for the lock and take it. Raises KilnError, with the holder's name, after `patience` seconds.

        The lock of a holder without a heartbeat for `silence` seconds is removed.
        """
        began, reported = time.monotonic(), False
        seen, since = "", began
        while True:
            state, *printed = script.run(
                self._transport, "lock", self._root, self.token, _owner()
            ).splitlines() or [""]
            if state == "taken":
                break
            now, text = time.monotonic(), "\n".join(printed)
            if text != seen:
                seen, since = text, now
            holder = printed[1] if len(printed) > 1 else ""
            if _is_gone(holder) or now - since > silence:
                stale = printed[0] if printed else ""
                script.run(self._transport, "unlock", self._root, stale, self.token)
                seen, since = "", now
                continue
            holder_text = _shown(holder)
            if now - began > patience:
                raise KilnError(
                    f"{self._transport.description}: {holder_text} holds its lock and did not release it "
                    f"within {patience:g} s; try again later"
                )
            if not reported:
                print(
                    f"kiln: {self._transport.description}: waiting for {holder_text}",
                    file=sys.stderr,
                    flush=True,
                )
                reported = True
            time.sleep(min(1.0, patience))
        self._beating = threading.Thread(target=self._beat, daemon=True)
        self._beating.start()

    def release(self) -> None:
        """Release the lock.

        Where the connection is lost, the lock stays until another host's wait times out.
        """
        self._ended.set()
        if self._beating is not None:
            self._beating.join()
            with contextlib.suppress(KilnError):
                script.run(self._transport, "unlock", self._root, self.token, self.token, timeout=AFTER)
            self._beating = None

    def _beat(self) -> None:
        count = 0
        while not self._ended.wait(BEAT):
            count += 1
            with contextlib.suppress(KilnError):
                script.attempt(self._transport, "beat", self._root, self.token, str(count))


def _owner() -> str:
    """The owner of a lock as text: user@host, the process number, and the boot of its machine."""
    return f"{getpass.getuser()}@{socket.gethostname()} {os.getpid()} {_boot()}"


def _shown(owner: str) -> str:
    """The name of an owner for messages: `ann@desk`."""
    return printable(owner.split(" ")[0], 80) or "another host"


def _is_gone(owner: str) -> bool:
    """Whether the owner is a process of this machine and boot that has ended."""
    match owner.split(" "):
        case [_, number, boot] if boot == _boot() != "-" and number.isdigit():
            return not Path("/proc", number).exists()
    return False


def _boot() -> str:
    # Includes the PID namespace, since a container's process numbers differ from those of its host.
    try:
        space = os.readlink("/proc/self/ns/pid")  # noqa: PTH115
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + space.replace(" ", "")
    except OSError:
        return "-"
