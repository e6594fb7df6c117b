"""Transports: connections to devices. Each module is one kind, with its keys of a device's YAML:

    SETTINGS = SshSettings                               a Section with the keys below `transport` in the YAML
    PATHS = ("identity",)                                keys that are local paths, relative to the YAML
    PROGRAMS = ("ssh",)                                  local programs that the transport starts
    FILES = True                                         whether the device has a file system for bundles
    def open_transport(device)           -> Transport    connects; KilnError with one line and what to do

To add a kind of transport, add a module to this package; nothing else changes.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol, cast

from kiln.config import Device
from kiln.errors import KilnError

if TYPE_CHECKING:
    from kiln.device.microcontroller.image import Image

TIMEOUT = 120.0  # seconds for a command that has no reason to be slow
AFTER = 20.0  # seconds for a command that cleans up: the device may have stopped answering


class StillRunningError(KilnError):
    """A program has not ended within its limit of time, and was stopped."""


@dataclass(frozen=True)
class Answer:
    """Result of a command on a device: exit status and output."""

    status: int
    stdout: bytes
    stderr: str

    @property
    def text(self) -> str:
        """The standard output as text."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def complaint(self) -> str:
        """The last line on stderr, with control characters replaced; without one, a text with the status.

        A negative status is the signal that killed the local client.
        """
        lines = [line for line in self.stderr.splitlines() if line.strip()]
        return printable(lines[-1]) if lines else f"it ended with status {self.status} and no error message"


class Transport(Protocol):
    """A connection to one device.

    All methods raise KilnError when the connection is lost or `timeout` seconds have passed.
    """

    @property
    def description(self) -> str:
        """The device as text for the user: `device 'pi4' (ssh pi4.local)`."""

    @property
    def has_shell(self) -> bool:
        """Whether the device has a POSIX shell and a file system; if not, programs are loaded as images."""

    def run(
        self, command: Sequence[str], *, stdin: bytes | Path | None = None, timeout: float = TIMEOUT
    ) -> Answer:
        """Run a program on the device with exactly these arguments, which may contain any characters."""

    def send(self, files: Mapping[str, Path], *, timeout: float = TIMEOUT) -> None:
        """Copy files to the device: absolute path there → file here. Existing files are overwritten."""

    def fetch(self, path: str, destination: Path, *, timeout: float = TIMEOUT) -> bool:
        """Copy a file from the device; returns False when it does not exist."""

    def close(self) -> None:
        """Close the connection, and leave no process or file of it on the device."""


class Loads(Transport, Protocol):
    """A connection to a device without a shell.

    Programs are loaded into memory; their files are stored on this machine.
    """

    def core(self) -> str | None:
        """LLVM's name of the core; None where Kiln does not recognise it."""

    def differing(self, image: Image) -> list[tuple[int, int]]:
        """(address, bytes) of each part of the image that differs from the device's memory."""

    def load(self, image: Image) -> int:
        """Write the blocks that differ from memory, and check the whole image; returns the bytes written.

        Raises KilnError where the core cannot run the image, before anything is written, and where the memory
        differs afterwards.
        """

    def reset(self, image: Image) -> None:
        """Set the registers so that the image runs next, from its beginning."""

    def made(self) -> dict[str, int]:
        """The programs' files on this machine: size in bytes by name."""


class TransportModule(Protocol):
    """The interface of every module of this package: the names that it defines."""

    SETTINGS: type
    PATHS: tuple[str, ...]
    PROGRAMS: tuple[str, ...]
    FILES: bool

    def open_transport(self, device: Device) -> Transport:
        """Connect to the device. Raises KilnError with one line that contains a remedy."""


def transport_modules() -> dict[str, ModuleType]:
    """The modules of this package by name; the name is the `kind` in a device's YAML."""
    names = sorted(entry.name for entry in pkgutil.iter_modules(__path__))
    return {name: importlib.import_module(f"{__name__}.{name}") for name in names}


def open_transport(device: Device) -> Transport:
    """Connect to the device. Raises KilnError with one line that contains a remedy."""
    kind = str(device.transport.model_dump()["kind"])
    return cast(TransportModule, importlib.import_module(f"{__name__}.{kind}")).open_transport(device)


def checked_name(value: str) -> str:
    """`value`, a name that a program gets as an argument. Raises ValueError for other characters.

    It cannot be an option, nor contain tokens of ssh's configuration (%) or characters special to a shell.
    """
    if not re.fullmatch(r"[A-Za-z0-9_.:][A-Za-z0-9_.:-]*", value):
        raise ValueError(f"letters, digits and '._:-' expected, not beginning with '-', got {value!r}")
    return value


def printable(text: str, limit: int = 200) -> str:
    """Text from a device with control characters replaced.

    Beyond `limit` characters, its beginning and end.
    """
    clean = "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
    return clean if len(clean) <= limit else f"{clean[: limit // 3]}…{clean[limit // 3 + 1 - limit :]}"
