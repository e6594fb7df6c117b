"""Transport to an Android device through the program adb; adb's own settings choose the adb server."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from kiln.config import Device
from kiln.config.check import Section
from kiln.device import process
from kiln.device.deploy.transports import TIMEOUT, Answer, checked_name, printable
from kiln.device.posix import BYTES_PER_SECOND, PosixTransport, as_text_and_input
from kiln.errors import KilnError

PATHS: tuple[str, ...] = ()
PROGRAMS: tuple[str, ...] = ("adb",)
FILES = True


class AdbSettings(Section):
    """The YAML keys of an adb device."""

    kind: Literal["adb"] = Field(description="an Android device, through adb")
    serial: Annotated[str, AfterValidator(checked_name)] = Field(description="as `adb devices` lists it")


SETTINGS = AdbSettings


class AdbTransport(PosixTransport):
    """Runs commands with `adb shell`, which separates stdout, stderr and status.

    Sends files with `adb push`.
    """

    def __init__(self, name: str, serial: str) -> None:
        self._name, self._serial = name, serial
        self._adb = [process.client("adb"), "-s", serial]
        state = self._client("get-state")
        if state.status or state.text.strip() != "device":
            raise KilnError(f"{self.description}: {self._reason(state)}")

    @property
    def description(self) -> str:
        """See Transport.description."""
        return f"device '{self._name}' (adb {self._serial})"

    def run(
        self, command: Sequence[str], *, stdin: bytes | Path | None = None, timeout: float = TIMEOUT
    ) -> Answer:
        """See Transport.run."""
        text, stdin = as_text_and_input(command, stdin)
        quiet = ["-n"] if stdin is None else []
        done = self._client("shell", *quiet, "-T", text, stdin=stdin, timeout=timeout)
        if done.status and self._lost(done):
            raise KilnError(f"{self.description}: {self._reason(done)}")
        return done

    def send(self, files: Mapping[str, Path], *, timeout: float = TIMEOUT) -> None:
        """See Transport.send."""
        for path, source in files.items():
            limit = timeout + source.stat().st_size / BYTES_PER_SECOND
            done = self._client("push", str(source.resolve()), path, timeout=limit)
            if done.status:
                raise KilnError(f"{self.description}: cannot write {path}: {self._reason(done)}")

    def close(self) -> None:
        """Do nothing: each command opens its own connection."""

    def _client(self, *words: str, stdin: bytes | Path | None = None, timeout: float = TIMEOUT) -> Answer:
        return process.run([*self._adb, *words], description=self.description, stdin=stdin, timeout=timeout)

    def _lost(self, done: Answer) -> bool:
        last = done.stderr.strip().splitlines()[-1:]
        return any(
            re.match(r"(adb: )?(error: )?(device|no devices|closed|protocol fault)", line) for line in last
        )

    def _reason(self, done: Answer) -> str:
        output = f"{done.stderr}\n{done.text}"
        if "unauthorized" in output:
            return "it does not trust this machine; unlock it and allow USB debugging"
        if "offline" in output:
            return "it is offline; plug it in again, or: adb reconnect"
        if "not found" in output or "no devices" in output:
            return f"it is not connected; `adb devices` does not list {self._serial}"
        lines = [line for line in output.splitlines() if line.strip()]
        lines = [line for line in lines if "error:" in line] or lines
        return printable(lines[-1]) if lines else "adb ended without an error message"


def open_transport(device: Device) -> AdbTransport:
    """See TransportModule.open_transport."""
    assert isinstance(device.transport, AdbSettings)
    return AdbTransport(device.name, device.transport.serial)
