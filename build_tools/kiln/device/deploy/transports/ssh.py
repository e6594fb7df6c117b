"""Transport through OpenSSH: the system's client with the user's configuration, keys and jump hosts.

One connection carries many commands (ssh's ControlMaster). Its client is a child of this process and ends
with it. Whatever the user's configuration contains, the host key is checked, ssh never prompts, and no port,
agent or display is forwarded.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from kiln.config import Device
from kiln.config.check import Section
from kiln.config.sizes import ceil_div
from kiln.device import process
from kiln.device.deploy.transports import TIMEOUT, Answer, checked_name, printable
from kiln.device.posix import PosixTransport, as_text_and_input
from kiln.errors import KilnError
from kiln.parent import end_with_parent
from kiln.scratch import scratch_folder

PATHS = ("config", "identity")
PROGRAMS: tuple[str, ...] = ("ssh",)
FILES = True

# Passed on the command line: ssh uses the first value that it reads, so these override the user's
# configuration.
_ALWAYS = {
    "StrictHostKeyChecking": "yes",
    "NoHostAuthenticationForLocalhost": "no",
    "UpdateHostKeys": "no",
    "BatchMode": "yes",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "ClearAllForwardings": "yes",
    "PermitLocalCommand": "no",
    "RemoteCommand": "none",
    "RequestTTY": "no",
    "ServerAliveCountMax": "3",
    "LogLevel": "ERROR",
}

# Bytes of the path of the folder with the socket `socket.` and 16 characters, for which systems allow 103.
_LONGEST = 103 - len("/socket.") - 16

Name = Annotated[str, AfterValidator(checked_name)]


class SshSettings(Section):
    """The YAML keys of an ssh device. All but `host` may be set in the user's ~/.ssh/config instead."""

    kind: Literal["ssh"] = Field(description="a machine with an SSH server")
    host: Name = Field(description="a Host of the ssh configuration, a name or an address")
    user: Name | None = Field(default=None, description="name to log in with; null: from ssh's configuration")
    port: int | None = Field(
        default=None, ge=1, le=65535, description="port of the SSH server; null: from ssh's configuration"
    )
    identity: str | None = Field(default=None, description="file of the private key")
    config: str | None = Field(default=None, description="ssh configuration in place of ~/.ssh/config")
    timeout: int = Field(
        default=10,
        ge=1,
        le=600,
        description="seconds to wait for the connection; twice as long a silent one is kept",
    )


SETTINGS = SshSettings


class SshTransport(PosixTransport):
    """Runs each command in a session of a connection; each connection runs one command at a time.

    dropbear 2022.83 ends a session that begins at the moment at which another session of the connection ends:
    the new session's command is killed, and the client exits with 255 and no message. So a command that runs
    at the same time as another one (the lock's heartbeat) uses a second connection. Where a second connection
    cannot be opened, both use the first.
    """

    def __init__(self, name: str, settings: SshSettings) -> None:
        self._name, self._settings = name, settings
        self._idle = threading.Lock()
        self._first = _Connection(self.description, settings)
        self._second: _Connection | None = None

    @property
    def description(self) -> str:
        """See Transport.description."""
        return f"device '{self._name}' (ssh {self._settings.host})"

    def run(
        self, command: Sequence[str], *, stdin: bytes | Path | None = None, timeout: float = TIMEOUT
    ) -> Answer:
        """See Transport.run. Two threads may call it at the same time."""
        if not self._first.lives:
            raise KilnError(f"{self.description}: the connection was lost")
        text, stdin = as_text_and_input(command, stdin)
        if not self._idle.acquire(blocking=False):
            return self._other().run(text, stdin, timeout)
        try:
            return self._first.run(text, stdin, timeout)
        finally:
            self._idle.release()

    def _other(self) -> _Connection:
        if self._second is not None and not self._second.lives:  # lost, or its thread has ended
            self._second.close()
            self._second = None
        if self._second is None:
            with contextlib.suppress(KilnError):
                self._second = _Connection(self.description, self._settings, first=self._first)
        return self._second or self._first

    def close(self) -> None:
        """Close both connections."""
        for connection in (self._second, self._first):
            if connection is not None:
                connection.close()


class _Connection:
    """One connection (ssh's ControlMaster) to a device. Raises KilnError with a remedy.

    `description`: the device in error messages. `first`: an open connection to the device; when it is lost,
    opening this one fails at once.
    """

    def __init__(self, description: str, settings: SshSettings, first: _Connection | None = None) -> None:
        self._description, self._settings, self._shared = description, settings, first
        self._scratch = contextlib.ExitStack()
        self._folder = self._scratch.enter_context(scratch_folder("ssh", _LONGEST))
        self._ssh = [process.client("ssh"), *self._options()]
        self._log = Path(self._folder, "log")
        self._master: subprocess.Popen[bytes] | None = None
        try:
            self._master = self._connect()
        except BaseException:
            self.close()
            raise

    @property
    def lives(self) -> bool:
        """Whether the client's process runs; ssh detects only after a while that a device has gone away."""
        return self._master is not None and self._master.poll() is None

    def run(self, text: str, stdin: bytes | Path | None, timeout: float) -> Answer:
        """Run the shell command `text` on the device. Raises KilnError when the connection is lost."""
        words = [*self._ssh, "-o", "ControlMaster=no", "--", self._settings.host, text]
        answer = process.run(words, description=self._description, stdin=stdin, timeout=timeout)
        if answer.status == 255 and self._is_lost():
            raise KilnError(f"{self._description}: the connection was lost")
        return answer

    def _is_lost(self) -> bool:
        """Whether a status of 255 means a lost connection; a program's own 255 leaves the connection open.

        A failing connection ends its sessions first, so its process may end up to a second later.
        """
        if self._master is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._master.wait(1)
        return not self.lives or not self._answers()

    def close(self) -> None:
        """Close the connection and remove its temporary folder."""
        if self._master is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._master.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._master.wait(5)
            self._master = None
        self._scratch.close()

    def _options(self) -> list[str]:
        chosen = self._settings
        options = [] if chosen.config is None else ["-F", chosen.config]
        fixed = {
            **_ALWAYS,
            "ConnectTimeout": str(chosen.timeout),
            "ServerAliveInterval": str(ceil_div(chosen.timeout, 2)),  # lost after four of them
            "ControlPath": f"{self._folder}/socket",
        }
        options += [word for key, value in fixed.items() for word in ("-o", f"{key}={value}")]
        only = [] if chosen.identity is None else ["-o", "IdentitiesOnly=yes"]
        user = [] if chosen.user is None else ["-l", chosen.user]
        return [*options, *_key_and_port(chosen), *user, *only, "-T"]

    def _by_hand(self, program: str = "ssh") -> str:
        """The command line with which a person connects as this connection does."""
        chosen = self._settings
        words = [program, *([] if chosen.config is None else ["-F", chosen.config]), *_key_and_port(chosen)]
        return shlex.join([*words, chosen.host if chosen.user is None else f"{chosen.user}@{chosen.host}"])

    def _connect(self) -> subprocess.Popen[bytes]:
        words = [
            *self._ssh,
            "-o",
            "ControlMaster=yes",
            "-o",
            "ControlPersist=no",
            "-N",
            "--",
            self._settings.host,
        ]
        with self._log.open("wb") as log:
            master = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        # Three times the timeout: a jump host has its own time to connect, and both servers send greetings.
        limit = time.monotonic() + 3 * self._settings.timeout
        socket = Path(self._folder, "socket")
        while not (socket.exists() and self._answers()):
            if master.poll() is not None:
                raise KilnError(f"{self._description}: {self._reason()}")
            if time.monotonic() > limit or (self._shared is not None and not self._shared.lives):
                process.stop(master)
                raise KilnError(
                    f"{self._description}: no connection within {3 * self._settings.timeout} s; "
                    f"try: {self._by_hand()}"
                )
            time.sleep(0.02)
        return master

    def _answers(self) -> bool:
        words = [*self._ssh, "-O", "check", "--", self._settings.host]
        try:
            done = subprocess.run(words, capture_output=True, check=False, timeout=self._settings.timeout)
        except subprocess.TimeoutExpired:  # the master hangs: `_connect` has a limit of its own
            return False
        return done.returncode == 0

    def _reason(self) -> str:
        """ssh's error as one line with a remedy."""
        log = self._log.read_text(encoding="utf-8", errors="replace")
        by_hand = self._by_hand()
        if "IDENTIFICATION HAS CHANGED" in log:
            return (
                "its host key is another than the known one: someone may be in between; if the device was "
                f"set up anew, forget the old key with ssh-keygen -R and check the new one with: {by_hand}"
            )
        if "Host key verification failed" in log or "host key is known" in log:
            return f"its host key is not known here; connect once by hand and check the key: {by_hand}"
        if "Permission denied" in log or "Too many authentication failures" in log:
            return f"it refuses this key or user; let it in with: {self._by_hand('ssh-copy-id')}"
        lines = [line for line in log.splitlines() if line.strip()]
        return f"{printable(lines[-1]) if lines else 'ssh ended without an error message'}; try: {by_hand}"


def _key_and_port(chosen: SshSettings) -> list[str]:
    """The options that say with which key and at which port to log in, of ssh and of ssh-copy-id."""
    options_set = {"-i": chosen.identity, "-p": chosen.port}
    return [word for flag, value in options_set.items() if value is not None for word in (flag, str(value))]


def open_transport(device: Device) -> SshTransport:
    """See TransportModule.open_transport."""
    assert isinstance(device.transport, SshSettings)
    return SshTransport(device.name, device.transport)
