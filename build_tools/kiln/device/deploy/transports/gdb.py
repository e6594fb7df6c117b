"""Transport to a microcontroller behind a gdb server: OpenOCD, pyOCD, J-Link, Black Magic Probe, QEMU.

The device has no file system and no shell. Files to send are stored on this machine until a program runs. The
program's blocks that differ from memory are written, to flash where the server's memory map has flash, then
all of it is checked by the server's CRC or by reading it back, and it starts from its vector table. Its files
and output go through semihosting. The program ends with a call of its function `kiln_exit(status)`, where a
breakpoint stops it, or with the server's packet for an exit.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from kiln.config import Device
from kiln.config.check import Section
from kiln.device.deploy.transports import TIMEOUT, Answer, StillRunningError, printable
from kiln.device.microcontroller.fileio import Files
from kiln.device.microcontroller.image import CORES, EXIT, Image, is_image, read_image
from kiln.device.microcontroller.rsp import Rsp
from kiln.errors import KilnError

PATHS: tuple[str, ...] = ()
PROGRAMS: tuple[str, ...] = ()
FILES = False

# Numbers of registers of M-profile cores in gdb's order; addresses of CPUID and of VTOR (vector table).
_SP, _PC, _XPSR, _CPUID, _VTOR = 13, 15, 25, 0xE000ED00, 0xE000ED08
_THUMB = 0x01000000
# Files of programs that Kiln links: programs/bare/bare.c.
_ARGUMENTS, _OUTPUTS = "kiln-arguments", ("kiln-stdout", "kiln-stderr")


def _address(value: str) -> str:
    match = re.fullmatch(r"[A-Za-z0-9_.-]+:([0-9]{1,5})", value)
    if not match or not 0 < int(match[1]) < 65536:
        raise ValueError(f"HOST:PORT of a gdb server expected, such as localhost:3333, got {value!r}")
    return value


class GdbSettings(Section):
    """The YAML keys of a device behind a gdb server."""

    kind: Literal["gdb"] = Field(description="a microcontroller behind a gdb server")
    address: Annotated[str, AfterValidator(_address)] = Field(description="HOST:PORT")
    timeout: int = Field(default=10, ge=1, le=600, description="seconds to wait for an answer")


SETTINGS = GdbSettings


class GdbTransport:
    """A connection to one core, which is stopped except while a program runs."""

    has_shell = False

    def __init__(self, name: str, settings: GdbSettings) -> None:
        self.description = f"device '{name}' (gdb {settings.address})"
        host, _, port = settings.address.rpartition(":")
        self._rsp = Rsp((host, int(port)), self.description, settings.timeout)
        self._files = Files()
        self._programs: dict[str, Path] = {}

    def send(self, files: Mapping[str, Path], *, timeout: float = TIMEOUT) -> None:
        """Store files for the next run. ELF files are programs that can be run."""
        for name, path in files.items():
            if is_image(path):
                self._programs[name] = path
            else:
                self._files.give({name: path.read_bytes()})

    def fetch(self, path: str, destination: Path, *, timeout: float = TIMEOUT) -> bool:
        """Copy a file that the program wrote, or that was sent; returns False when it does not exist."""
        if path not in self._files.contents:
            return False
        destination.write_bytes(self._files.contents[path])
        return True

    def run(
        self, command: Sequence[str], *, stdin: bytes | Path | None = None, timeout: float = TIMEOUT
    ) -> Answer:
        """Load and run a program that was sent.

        It opens its files by name. Programs of Kiln's own find their command line in the file kiln-arguments,
        and write kiln-stdout and kiln-stderr.
        """
        if command[0] not in self._programs:
            raise KilnError(f"{self.description}: {command[0]} is not a program for this device")
        image = read_image(self._programs[command[0]])
        self.load(image)
        self.reset(image)
        self._files.stdout.clear()
        self._files.stderr.clear()
        for name in _OUTPUTS:
            self._files.contents.pop(name, None)
        self._files.give({_ARGUMENTS: " ".join(command).encode()})
        status = self._until_it_ends(image.exit, timeout)
        stdout, stderr = self._files.stdout, self._files.stderr
        del self._files.contents[_ARGUMENTS]
        for sink, name in zip((stdout, stderr), _OUTPUTS, strict=True):
            sink += self._files.contents.pop(name, b"")
        return Answer(status, bytes(stdout), stderr.decode("utf-8", "replace"))

    def close(self) -> None:
        """Close the connection; the core stays stopped."""
        self._rsp.close()

    def core(self) -> str | None:
        """LLVM's name of the core, by its CPUID register; None where Kiln does not recognise it."""
        return CORES[self._part()][0] if self._part() in CORES else None

    def differing(self, image: Image) -> list[tuple[int, int]]:
        """(address, bytes) of each part of the image that differs from memory, block by block."""
        differences = []
        for _, _, pieces in image.blocks(self._rsp.flash_regions()):
            differences += [
                (address, len(content))
                for address, content in pieces
                if not self._rsp.holds(address, content)
            ]
        return differences

    def load(self, image: Image) -> int:
        """Write the blocks that differ from memory, and check the whole image; returns the bytes written.

        Raises KilnError where the core cannot run the image, before anything is written, and where the memory
        differs afterwards.
        """
        core = CORES.get(self._part())
        if core is not None and image.architecture is not None and image.architecture not in core[1]:
            raise KilnError(
                f"{self.description}: its core is a {core[0]}, and {image.path.name} is for "
                f"{image.architecture}; nothing was changed there"
            )
        written = 0
        for region, block, pieces in image.blocks(self._rsp.flash_regions()):
            if all(self._rsp.holds(address, content) for address, content in pieces):
                continue
            if region is not None:
                # Erasing the block also erases its other contents, so these are read first and written back.
                block_content = bytearray(self._rsp.read(block, region.block))
                for at, content in pieces:
                    block_content[at - block : at - block + len(content)] = content
                self._rsp.erase_and_write(region, block, bytes(block_content))
                written += len(block_content)
            else:
                for at, content in pieces:
                    self._rsp.write(at, content)
                    written += len(content)
        for address, content in image.parts:
            if not self._rsp.holds(address, content):
                raise KilnError(
                    f"{self.description}: {len(content):,} bytes at 0x{address:x} are not what was written: "
                    "is there memory, and is its flash unlocked?"
                )
        return written

    def reset(self, image: Image) -> None:
        """Set the registers as after a reset, so that the image runs next, from its beginning."""
        vectors, content = image.parts[0]
        self._rsp.write(_VTOR, vectors.to_bytes(4, "little"))
        self._rsp.set_register(_SP, int.from_bytes(content[:4], "little"))
        self._rsp.set_register(_XPSR, _THUMB)
        self._rsp.set_register(_PC, int.from_bytes(content[4:8], "little") & ~1)

    def made(self) -> dict[str, int]:
        """The programs' files on this machine: size in bytes by name."""
        return {name: len(content) for name, content in self._files.contents.items()}

    def _part(self) -> int:
        """The part number in CPUID; 0 where it cannot be read, or the implementer is not Arm."""
        try:
            value = int.from_bytes(self._rsp.read(_CPUID, 4), "little")
        except KilnError:
            return 0
        return (value >> 4) & 0xFFF if value >> 24 == 0x41 else 0

    def _until_it_ends(self, ends: int | None, timeout: float) -> int:
        limit = time.monotonic() + timeout
        if ends is not None:
            self._rsp.must(b"Z1,%x,2" % ends, f"cannot set a breakpoint at {EXIT}")
        try:
            self._rsp.resume()
            while True:
                if not self._rsp.waiting(limit - time.monotonic()):
                    ending = "was stopped" if self._rsp.interrupt() else "and the gdb server reports no stop"
                    raise StillRunningError(
                        f"{self.description}: still running after {timeout:g} s, {ending}"
                    )
                stop = self._rsp.receive()
                match stop[:1]:
                    case b"F":
                        self._files.serve(self._rsp, stop)
                    case b"O" if stop != b"OK":
                        self._files.stdout += bytes.fromhex(stop[1:].decode("latin-1"))
                    case b"W":
                        return int(stop[1:3], 16)
                    case b"S" | b"T":
                        return self._stopped(stop, ends)
                    case _:
                        raise KilnError(f"{self.description}: it stopped: {printable(repr(stop[:40]))}")
        finally:
            if ends is not None:
                # An error of the connection must not replace the status or the error of the run.
                with contextlib.suppress(KilnError):
                    self._rsp.ask(b"z1,%x,2" % ends)

    def _stopped(self, stop: bytes, ends: int | None) -> int:
        address = self._rsp.register(_PC)
        if ends is not None and address == ends:
            return self._rsp.register(0) & 0xFF
        raise KilnError(
            f"{self.description}: the program stopped at 0x{address:x} with signal {int(stop[1:3], 16)}, "
            f"not at {EXIT}"
        )


def open_transport(device: Device) -> GdbTransport:
    """See TransportModule.open_transport."""
    assert isinstance(device.transport, GdbSettings)
    return GdbTransport(device.name, device.transport)
