"""Transport to a microcontroller on a debug probe, through a gdb server of pyOCD's that is started here.

Programs, flash memory and files are those of the transport gdb. pyOCD (PyPI: pyocd) is a package of Kiln's
own Python environment or a program on PATH. Its server listens on a free port of this machine, for this
machine alone, and hands semihosting's files to Kiln; configuration files of pyOCD are not read.
"""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from kiln.config import Device
from kiln.config.check import Section
from kiln.device.deploy.transports import AFTER, printable
from kiln.device.deploy.transports.gdb import GdbSettings, GdbTransport
from kiln.errors import KilnError
from kiln.interpreter import module_command
from kiln.parent import end_with_parent

PATHS = ("pack",)
PROGRAMS: tuple[str, ...] = ()  # pyOCD may be a package instead: see _command
FILES = False

_START = 60.0  # seconds until the server listens: it connects to the core first
_TRIES = 3  # another program may take the free port before the server does


def _word(value: str) -> str:
    if not value or value.startswith("-") or not value.isprintable() or " " in value:
        raise ValueError(f"one word expected, not beginning with '-', got {value!r}")
    return value


class PyocdSettings(Section):
    """The YAML keys of a device on a debug probe that pyOCD drives."""

    kind: Literal["pyocd"] = Field(description="a microcontroller on a debug probe, by pyOCD")
    chip: Annotated[str, AfterValidator(_word)] | None = Field(
        default=None, description="pyOCD's name of the chip (pyocd list --targets); none: the board says it"
    )
    probe: Annotated[str, AfterValidator(_word)] | None = Field(
        default=None, description="the probe's unique ID (pyocd list); none: the only probe"
    )
    pack: str | None = Field(default=None, description="path of the chip's CMSIS-Pack")
    frequency: int | None = Field(default=None, ge=1, description="clock of SWD or JTAG, in Hz")
    connect: Literal["halt", "pre-reset", "under-reset"] = Field(
        default="halt", description="how the core is stopped when pyOCD connects"
    )
    timeout: int = Field(default=10, ge=1, le=600, description="seconds to wait for an answer")


SETTINGS = PyocdSettings


def _command() -> list[str]:
    """The command that starts pyOCD. Raises KilnError, with the way to install pyOCD, where it is missing."""
    if importlib.util.find_spec("pyocd") is not None:
        return module_command("pyocd")
    program = shutil.which("pyocd")
    if program is None:
        raise KilnError(
            "transport 'pyocd' needs the package pyocd, which is not installed; install it with: "
            f"{sys.executable} -m pip install pyocd"
        )
    return [program]


def server_command(settings: PyocdSettings, port: int, console: int) -> list[str]:
    """The command of pyOCD's gdb server on a port; `console`: that of its console, which has no reader."""
    options = {
        "--target": settings.chip,
        "--probe": settings.probe,
        "--pack": settings.pack,
        "--frequency": settings.frequency,
        "--connect": settings.connect,
        "--port": port,
        "--telnet-port": console,
    }
    arguments = [word for name, value in options.items() if value is not None for word in (name, str(value))]
    return [
        *_command(), "gdbserver", "--no-wait", "--no-config", "--persist", "--semihosting",
        "-O", "semihost_use_syscalls=true", "-O", "resume_on_disconnect=false", *arguments,
    ]  # fmt: skip


class PyocdServer:
    """pyOCD's gdb server as a child process."""

    def __init__(self, description: str, settings: PyocdSettings) -> None:
        self._description = description
        self.port, console = _free_ports()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)
        try:
            self._process = subprocess.Popen(
                server_command(settings, self.port, console),
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=subprocess.STDOUT,
                preexec_fn=end_with_parent,
            )
        except OSError as error:
            self._said.close()
            raise KilnError(f"{description}: pyOCD cannot be started: {error.strerror or error}") from error

    def ended(self) -> str | None:
        """The last output of pyOCD if its server has ended; None while it runs."""
        if self._process.poll() is None:
            return None
        self._said.seek(0)
        lines = self._said.read().decode("utf-8", "replace").splitlines()
        errors = [line for line in lines if " E " in line or "rror" in line or " C " in line]
        message = next(iter(reversed(errors or [line for line in lines if line.strip()])), "")
        return printable(message) or f"status {self._process.returncode} and no error message"

    def close(self) -> None:
        """End the server."""
        self._process.terminate()
        try:
            self._process.wait(AFTER)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._said.close()


class PyocdTransport(GdbTransport):
    """A connection to one core through a gdb server of pyOCD's that lives as long as it."""

    def __init__(self, name: str, settings: PyocdSettings) -> None:
        which = settings.probe or settings.chip or "the only probe"
        self._server = _connected(f"device '{name}' (pyocd {which})", settings, self, name)
        self.description = f"device '{name}' (pyocd {which})"

    def close(self) -> None:
        """Close the connection and end the server; the core stays stopped."""
        super().close()
        self._server.close()


def _connected(description: str, settings: PyocdSettings, transport: GdbTransport, name: str) -> PyocdServer:
    """Start a server and connect `transport` to it.

    Raises KilnError with pyOCD's own error where it finds no probe, or cannot connect to the core.
    """
    for attempt in range(_TRIES):
        server = PyocdServer(description, settings)
        address = GdbSettings(kind="gdb", address=f"127.0.0.1:{server.port}", timeout=settings.timeout)
        end = time.monotonic() + _START
        try:
            while time.monotonic() < end:
                try:
                    GdbTransport.__init__(transport, name, address)
                    return server
                except KilnError as error:
                    if not isinstance(error.__cause__, ConnectionRefusedError):
                        raise
                message = server.ended()
                if message is not None:
                    if "Address already in use" in message and attempt + 1 < _TRIES:
                        break
                    raise KilnError(f"{description}: pyOCD ended: {message}")
                time.sleep(0.05)
            else:
                raise KilnError(f"{description}: pyOCD does not listen after {_START:g} s")
        except BaseException:
            server.close()
            raise
        server.close()
    raise AssertionError("unreachable: the last attempt returns or raises")


def _free_ports() -> tuple[int, int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(2)]
        for socket_of_port in sockets:
            socket_of_port.bind(("127.0.0.1", 0))
        first, second = (socket_of_port.getsockname()[1] for socket_of_port in sockets)
    return first, second


def open_transport(device: Device) -> PyocdTransport:
    """See TransportModule.open_transport."""
    assert isinstance(device.transport, PyocdSettings)
    if device.transport.pack is not None and not Path(device.transport.pack).is_file():
        raise KilnError(f"device '{device.name}': transport.pack: {device.transport.pack}: no such file")
    return PyocdTransport(device.name, device.transport)
