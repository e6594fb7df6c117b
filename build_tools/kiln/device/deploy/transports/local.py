"""A folder of this machine as a device: for trials, and for machines that build for themselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from kiln.config import Device
from kiln.config.check import Section
from kiln.device import process
from kiln.device.deploy.transports import TIMEOUT, Answer
from kiln.device.posix import PosixTransport

PATHS: tuple[str, ...] = ()
PROGRAMS: tuple[str, ...] = ()
FILES = True


class LocalSettings(Section):
    """The YAML keys of a local device: only `kind`; the device's `folder` is a folder of this machine."""

    kind: Literal["local"] = Field(description="a folder of this machine")


SETTINGS = LocalSettings


class LocalTransport(PosixTransport):
    """Runs commands as processes of this machine."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def description(self) -> str:
        """See Transport.description."""
        return f"device '{self._name}' (this machine)"

    def run(
        self, command: Sequence[str], *, stdin: bytes | Path | None = None, timeout: float = TIMEOUT
    ) -> Answer:
        """See Transport.run."""
        return process.run(command, description=self.description, stdin=stdin, timeout=timeout, cwd=Path("/"))

    def close(self) -> None:
        """Do nothing: no connection is open."""


def open_transport(device: Device) -> LocalTransport:
    """See TransportModule.open_transport."""
    return LocalTransport(device.name)
