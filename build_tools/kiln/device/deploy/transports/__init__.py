"""How a device is reached. One file a way; each has its keys of a device's YAML and opens the connection.

    class Settings(Section): kind: Literal["ssh"]; …     what the YAML says below `transport`
    PATHS = ("identity",)                                which of them are paths here, relative to the YAML
    PROGRAMS = ("ssh",)                                  programs of this machine that it starts
    def open_transport(device)           -> Transport    connects; KilnError with one line and what to do

A new way of reaching devices is a new file here and nothing else.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol, cast

from kiln.config import Device

if TYPE_CHECKING:
    from kiln.device.microcontroller.image import Image

TIMEOUT = 120.0  # seconds for a command that has no reason to be slow
AFTER = 20.0  # seconds for one that tidies up: the device may just have been found to hang


@dataclass(frozen=True)
class Answer:
    """How a command there ended, and what it wrote."""

    status: int
    stdout: bytes
    stderr: str

    @property
    def text(self) -> str:
        """The standard output as text."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def complaint(self) -> str:
        """The last line on stderr, fit for a terminal whatever the device sent; without one, the status.

        A negative status is the signal that ended the client here.
        """
        lines = [line for line in self.stderr.splitlines() if line.strip()]
        return printable(lines[-1]) if lines else f"it ended with status {self.status} and does not say why"


class Transport(Protocol):
    """A connection to one device. All raise KilnError when it is lost or `timeout` seconds have passed."""

    @property
    def description(self) -> str:
        """What is at the other end, for people: `pi4 (ssh pi4.local)`."""

    @property
    def has_shell(self) -> bool:
        """Whether there is a POSIX shell with a file system; without one, programs are loaded as images."""

    def run(
        self, command: Sequence[str], *, stdin: bytes | Path | None = None, timeout: float = TIMEOUT
    ) -> Answer:
        """Run a program there with exactly these arguments, whatever characters they hold."""

    def send(self, files: Mapping[str, Path], *, timeout: float = TIMEOUT) -> None:
        """Copy files there: absolute path there → file here. What is there is written over."""

    def fetch(self, path: str, destination: Path, *, timeout: float = TIMEOUT) -> bool:
        """Copy a file from there; False when there is none."""

    def close(self) -> None:
        """End the connection. The device keeps nothing of it."""


class Loads(Transport, Protocol):
    """A connection without a shell: programs are loaded into memory, and their files are kept here."""

    def core(self) -> str | None:
        """The core's name, LLVM's; None where it is none that Kiln knows."""

    def differing(self, image: Image) -> list[tuple[int, int]]:
        """(address, bytes) of those parts of the image that are not in memory."""

    def load(self, image: Image) -> int:
        """Write what of the image is not in memory yet, and check all of it; the bytes written.

        Raises KilnError where the core cannot run it, before anything is written, or memory does not keep it.
        """

    def reset(self, image: Image) -> None:
        """Make the image, from its beginning, the next thing that runs."""

    def made(self) -> dict[str, int]:
        """The files that programs have on this side: names and bytes."""


class Way(Protocol):
    """What every module of this package has."""

    Settings: type
    PATHS: tuple[str, ...]
    PROGRAMS: tuple[str, ...]

    def open_transport(self, device: Device) -> Transport:
        """Connect."""


def ways() -> dict[str, ModuleType]:
    """The modules of this package by name, which is the `kind` in a device's YAML."""
    names = sorted(entry.name for entry in pkgutil.iter_modules(__path__))
    return {name: importlib.import_module(f"{__name__}.{name}") for name in names}


def open_transport(device: Device) -> Transport:
    """Connect to the device. Raises KilnError with one line that says what to do."""
    kind = str(device.transport.model_dump()["kind"])
    return cast(Way, importlib.import_module(f"{__name__}.{kind}")).open_transport(device)


def printable(text: str, most: int = 200) -> str:
    """Text of a device without what could drive a terminal; of a long one beginning and end."""
    clean = "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
    return clean if len(clean) <= most else f"{clean[: most // 3]}…{clean[most // 3 + 1 - most :]}"
