"""A microcontroller behind a gdb server: OpenOCD, pyOCD, J-Link, Black Magic Probe, QEMU.

There is no file system and no shell. What is sent is kept here until a program is run: that is loaded, into
flash where the server's memory map says so, checked by the server's CRC or by reading it back, and started
as its vector table says. Its files and output go through semihosting. It ends by a call of a function of its
own, `kiln_exit(status)`, at which it is stopped, or by the server's word for an exit.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from pydantic import AfterValidator, Field

from kiln.config import Device
from kiln.config.check import Section
from kiln.device.fileio import Files
from kiln.device.rsp import Rsp, crc32
from kiln.device.transports import TIMEOUT, Answer, printable
from kiln.errors import KilnError

PATHS: tuple[str, ...] = ()

# Registers of M-profile cores in gdb's order, and the register that says where the vector table is.
_SP, _PC, _XPSR, _VTOR = 13, 15, 25, 0xE000ED08
_THUMB = 0x01000000
_EXIT = "kiln_exit"


def _address(value: str) -> str:
    match = re.fullmatch(r"[A-Za-z0-9_.-]+:([0-9]{1,5})", value)
    if not match or not 0 < int(match[1]) < 65536:
        raise ValueError(f"HOST:PORT of a gdb server expected, such as localhost:3333, got {value!r}")
    return value


class Settings(Section):
    """Where the gdb server is."""

    kind: Literal["gdb"]
    address: Annotated[str, AfterValidator(_address)] = Field(description="HOST:PORT")
    timeout: int = Field(default=10, ge=1, le=600, description="seconds to wait for an answer")


class GdbTransport:
    """One core, stopped except while a program runs."""

    has_shell = False

    def __init__(self, name: str, settings: Settings) -> None:
        self.description = f"device '{name}' (gdb {settings.address})"
        host, _, port = settings.address.rpartition(":")
        self._rsp = Rsp((host, int(port)), self.description, settings.timeout)
        self._files = Files()
        self._programs: dict[str, Path] = {}

    def send(self, files: Mapping[str, Path], *, timeout: float = TIMEOUT) -> None:
        """Keep files for the next run. One that is an ELF file can be run."""
        for name, path in files.items():
            with path.open("rb") as stream:
                if stream.read(4) == b"\x7fELF":
                    self._programs[name] = path
                    continue
            self._files.give({name: path.read_bytes()})

    def fetch(self, path: str, destination: Path, *, timeout: float = TIMEOUT) -> bool:
        """A file that the program wrote, or was given."""
        if path not in self._files.contents:
            return False
        destination.write_bytes(self._files.contents[path])
        return True

    def run(
        self, command: Sequence[str], *, stdin: bytes | Path | None = None, timeout: float = TIMEOUT
    ) -> Answer:
        """Load and run a program that was sent. It has no command line: what it reads, it opens by name."""
        if command[0] not in self._programs:
            raise KilnError(f"{self.description}: {command[0]} is no program for it")
        ends = self._load(self._programs[command[0]])
        self._files.stdout.clear()
        self._files.stderr.clear()
        status = self._until_it_ends(ends, timeout)
        return Answer(status, bytes(self._files.stdout), self._files.stderr.decode("utf-8", "replace"))

    def close(self) -> None:
        """Let go of the core."""
        self._rsp.close()

    def _load(self, path: Path) -> int | None:
        """Write the program to memory, check it, set the registers; the address of its exit."""
        try:
            with path.open("rb") as stream:
                elf: Any = ELFFile(stream)
                parts = [
                    (int(segment["p_paddr"]), segment.data())
                    for segment in elf.iter_segments("PT_LOAD")
                    if segment["p_filesz"]
                ]
                table = elf.get_section_by_name(".symtab")
                ends = table.get_symbol_by_name(_EXIT) if table is not None else None
                machine = elf["e_machine"]
        except (OSError, ELFError) as error:
            raise KilnError(f"{path}: cannot be read as an ELF file: {error}") from error
        if machine != "EM_ARM" or not parts:
            raise KilnError(f"{path}: a program for Cortex-M expected, with something to load")
        flash = self._rsp.flash_regions()
        for address, content in parts:
            inside = [r for r in flash if r.start <= address and address + len(content) <= r.start + r.bytes]
            if inside:
                self._rsp.erase_and_write(inside[0], address, content)
            else:
                self._rsp.write(address, content)
        for address, content in parts:
            self._check(address, content)
        vectors, content = min(parts)
        self._rsp.write(_VTOR, vectors.to_bytes(4, "little"))
        self._rsp.set_register(_SP, int.from_bytes(content[:4], "little"))
        self._rsp.set_register(_XPSR, _THUMB)
        self._rsp.set_register(_PC, int.from_bytes(content[4:8], "little") & ~1)
        return int(ends[0]["st_value"]) & ~1 if ends else None

    def _check(self, address: int, content: bytes) -> None:
        there = self._rsp.crc(address, len(content))
        same = self._rsp.read(address, len(content)) == content if there is None else there == crc32(content)
        if not same:
            raise KilnError(
                f"{self.description}: {len(content):,} bytes at 0x{address:x} are not what was written: "
                "is there memory, and is its flash unlocked?"
            )

    def _until_it_ends(self, ends: int | None, timeout: float) -> int:
        limit = time.monotonic() + timeout
        if ends is not None:
            self._rsp.must(b"Z1,%x,2" % ends, f"cannot set a breakpoint at {_EXIT}")
        try:
            self._rsp.send(b"c")
            while True:
                if not self._rsp.waiting(limit - time.monotonic()):
                    self._rsp.interrupt()
                    self._rsp.receive()
                    raise KilnError(f"{self.description}: still running after {timeout:g} s, was stopped")
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
                self._rsp.ask(b"z1,%x,2" % ends)

    def _stopped(self, stop: bytes, ends: int | None) -> int:
        at = self._rsp.register(_PC)
        if ends is not None and at == ends:
            return self._rsp.register(0) & 0xFF
        raise KilnError(
            f"{self.description}: the program stopped at 0x{at:x} with signal {int(stop[1:3], 16)}, "
            f"not at {_EXIT}"
        )


def open_transport(device: Device) -> GdbTransport:
    """See Way.open_transport."""
    assert isinstance(device.transport, Settings)
    return GdbTransport(device.name, device.transport)
