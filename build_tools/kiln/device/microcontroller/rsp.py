"""A client for gdb's remote serial protocol over TCP, with the packets that microcontroller servers support.

Source: the appendices "Remote Protocol" and "File-I/O Remote Protocol Extension" of the manual of GDB.
"""

from __future__ import annotations

import contextlib
import re
import select
import socket
import time
from dataclasses import dataclass

from kiln.config.sizes import ceil_div
from kiln.errors import KilnError

_ESCAPED = b"}#$*"


@dataclass(frozen=True)
class MemoryMapRegion:
    """A region of the memory map.

    `block` is the number of bytes erased at a time, 0 where none need erasing.
    """

    start: int
    bytes: int
    block: int


class Rsp:
    """One connection to a gdb server.

    Every method raises KilnError when the server is gone, does not answer in time, or reports an error.
    """

    def __init__(self, address: tuple[str, int], description: str, timeout: float) -> None:
        self._description, self._timeout, self._acks, self._buffer = description, timeout, True, b""
        try:
            self._socket = socket.create_connection(address, timeout)
        except OSError as error:
            raise KilnError(
                f"{description}: no gdb server answers: {error.strerror or error}; start it (OpenOCD, pyOCD, "
                "…) first"
            ) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        features = self.ask(b"qSupported:hwbreak+;swbreak+").split(b";")
        size = next((word[11:] for word in features if word.startswith(b"PacketSize=")), b"400")
        self._chunk = max(64, (int(size, 16) - 64) // 2)
        self._has_crc = True  # until a qCRC packet gets no answer
        self._has_map = b"qXfer:memory-map:read+" in features
        if b"qXfer:features:read+" in features:
            # QEMU accepts packets for single registers only after the client has read the register
            # description.
            self.ask(b"qXfer:features:read:target.xml:0,%x" % self._chunk)
        self._is_qemu = self.ask(b"qqemu.sstepbits").startswith(b"ENABLE=")
        if b"QStartNoAckMode+" in features and self.ask(b"QStartNoAckMode") == b"OK":
            self._acks = False

    def ask(self, packet: bytes, timeout: float | None = None) -> bytes:
        """Send a packet and return the answer; it is empty where the server does not support the packet."""
        self.send(packet)
        return self.receive(timeout)

    def must(self, packet: bytes, what: str, timeout: float | None = None) -> None:
        """Send a packet; raises KilnError, with `what`, unless the answer is OK."""
        answer = self.ask(packet, timeout)
        if answer != b"OK":
            raise KilnError(
                f"{self._description}: {what}: the gdb server answers {answer[:40].decode('latin-1')!r}"
            )

    def send(self, packet: bytes) -> None:
        """Send a packet, with escapes and checksum."""
        body = b"".join(b"}" + bytes([c ^ 0x20]) if c in _ESCAPED else bytes([c]) for c in packet)
        with self._lost_is_one_line():
            self._socket.sendall(b"$" + body + b"#%02x" % (sum(body) & 0xFF))

    def receive(self, timeout: float | None = None) -> bytes:
        """The next packet from the server, without acknowledgements."""
        end = time.monotonic() + (timeout or self._timeout)
        while True:
            match = re.search(rb"\$([^#]*)#([0-9a-fA-F]{2})", self._buffer, re.DOTALL)
            if match is None:
                self._fill(end)
                continue
            self._buffer = self._buffer[match.end() :]
            if int(match[2], 16) != sum(match[1]) & 0xFF:
                if not self._acks:
                    raise KilnError(f"{self._description}: the gdb server sent a damaged packet")
                self._raw(b"-")
                continue
            if self._acks:
                self._raw(b"+")
            return _plain(match[1])

    def waiting(self, seconds: float) -> bool:
        """Whether the server starts to send a packet within `seconds`."""
        end = time.monotonic() + seconds
        while b"$" not in self._buffer:
            if not select.select([self._socket], [], [], max(0.0, end - time.monotonic()))[0]:
                return False
            self._fill(time.monotonic() + 1)
        return True

    def read(self, address: int, count: int) -> bytes:
        """Read `count` bytes of memory."""
        pieces = []
        for position in range(address, address + count, self._chunk):
            count_here = min(self._chunk, address + count - position)
            answer = self.ask(b"m%x,%x" % (position, count_here))
            if re.fullmatch(rb"([0-9a-fA-F]{2})+", answer) is None or len(answer) != 2 * count_here:
                raise KilnError(f"{self._description}: cannot read memory at 0x{position:x}")
            pieces.append(bytes.fromhex(answer.decode()))
        return b"".join(pieces)

    def write(self, address: int, content: bytes) -> None:
        """Write memory that is not flash."""
        for position in range(0, len(content), self._chunk):
            piece = content[position : position + self._chunk]
            packet = b"M%x,%x:%s" % (address + position, len(piece), piece.hex().encode())
            self.must(packet, f"cannot write memory at 0x{address + position:x}")

    def erase_and_write(self, region: MemoryMapRegion, address: int, content: bytes) -> None:
        """Write flash memory, after erasing all blocks that `content` touches."""
        first = address - (address - region.start) % region.block
        count = ceil_div(address + len(content) - first, region.block) * region.block
        self.must(b"vFlashErase:%x,%x" % (first, count), f"cannot erase flash at 0x{first:x}", 60)
        for position in range(0, len(content), self._chunk):
            chunk = content[position : position + self._chunk]
            self.must(
                b"vFlashWrite:%x:%s" % (address + position, chunk),
                f"cannot write flash at 0x{address + position:x}",
                60,
            )
        self.must(b"vFlashDone", "cannot write flash", 60)

    def flash_regions(self) -> list[MemoryMapRegion]:
        """The flash regions of the memory map; empty where the server has no memory map."""
        text, position = b"", 0
        while self._has_map:
            answer = self.ask(b"qXfer:memory-map:read::%x,%x" % (position, self._chunk))
            text, position = text + answer[1:], position + len(answer) - 1
            if answer[:1] != b"m":
                break
        pattern = (
            r'<memory\s+type="flash"\s+start="(0x[0-9a-fA-F]+)"\s+length="(0x[0-9a-fA-F]+)"\s*>\s*'
            r'<property\s+name="blocksize"\s*>\s*(0x[0-9a-fA-F]+)'
        )
        matches = re.findall(pattern, text.decode("latin-1"))
        return [
            MemoryMapRegion(*(int(word, 16) for word in match)) for match in matches if int(match[2], 16) > 0
        ]

    def crc(self, address: int, count: int) -> int | None:
        """The server's CRC-32 of memory; None where the server does not support qCRC."""
        answer = self.ask(b"qCRC:%x,%x" % (address, count), 60)
        return int(answer[1:], 16) if re.fullmatch(rb"C[0-9a-fA-F]{1,8}", answer) else None

    def holds(self, address: int, content: bytes) -> bool:
        """Whether memory at `address` has this content: by the server's CRC-32, else by reading it back."""
        checksum = self.crc(address, len(content)) if self._has_crc else None
        if checksum is None:
            self._has_crc = False
            return self.read(address, len(content)) == content
        return checksum == crc32(content)

    def set_register(self, number: int, value: int) -> None:
        """Set one 32-bit register."""
        packet = b"P%x=%s" % (number, value.to_bytes(4, "little").hex().encode())
        self.must(packet, f"cannot set register {number}")

    def register(self, number: int) -> int:
        """Read one 32-bit register."""
        answer = self.ask(b"p%x" % number)
        if re.fullmatch(rb"[0-9a-fA-F]{8}", answer) is None:
            raise KilnError(f"{self._description}: cannot read register {number}")
        return int.from_bytes(bytes.fromhex(answer.decode()), "little")

    def resume(self) -> None:
        """Resume the program; the server then sends a stop packet or a File-I/O request."""
        self.send(b"c")

    def reply_to_call(self, status: int) -> None:
        """Reply to a File-I/O request, and let the program continue; a negative status is -errno."""
        code, error = (b"%x" % status, 0) if status >= 0 else (b"-1", -status)
        if not self._is_qemu:
            self.send(b"F%s,%x" % (code, error) if error else b"F" + code)
            return
        # QEMU since 8.1 sends a stop packet only if the last packet that it received was a resumption, and
        # does not count packet F as one. With the Ctrl-C flag, the program stops directly after the call.
        stop = self.ask(b"F%s,%x,C" % (code, error))
        if stop[:3] not in (b"S02", b"T02"):
            raise KilnError(
                f"{self._description}: the gdb server answers a File-I/O reply with "
                f"{stop[:40].decode('latin-1')!r}, a stop with signal 2 expected"
            )
        self.resume()

    def interrupt(self) -> bool:
        """Interrupt the running program. Returns whether the server sent a stop packet in time."""
        self._raw(b"\x03")
        end = time.monotonic() + self._timeout
        while self.waiting(end - time.monotonic()):
            match self.receive()[:1]:
                case b"F":
                    # The program began a call before the interrupt arrived: EINTR means that it was not done.
                    self.send(b"F-1,4,C")
                case b"S" | b"T" | b"W" | b"X":
                    return True
        return False

    def close(self) -> None:
        """Close the connection and leave the core stopped; a detach (packet D) would let it continue."""
        self._socket.close()

    def _raw(self, content: bytes) -> None:
        with self._lost_is_one_line():
            self._socket.sendall(content)

    def _fill(self, end: float) -> None:
        seconds_left = end - time.monotonic()
        if seconds_left <= 0:
            raise KilnError(f"{self._description}: the gdb server did not answer in time")
        with self._lost_is_one_line():
            self._socket.settimeout(seconds_left)
            try:
                block = self._socket.recv(65536)
            except TimeoutError:
                return
            if not block:
                raise KilnError(f"{self._description}: the gdb server ended the connection")
            self._buffer += block

    @contextlib.contextmanager
    def _lost_is_one_line(self):  # type: ignore[no-untyped-def]
        try:
            yield
        except OSError as error:
            raise KilnError(
                f"{self._description}: the connection was lost: {error.strerror or error}"
            ) from error


def _plain(body: bytes) -> bytes:
    """A packet's content with escapes and run lengths decoded."""
    out, position = bytearray(), 0
    while position < len(body):
        if body[position : position + 1] == b"}" and position + 1 < len(body):
            out.append(body[position + 1] ^ 0x20)
            position += 2
        elif body[position : position + 1] == b"*" and out and position + 1 < len(body):
            out += out[-1:] * (body[position + 1] - 29)
            position += 2
        else:
            out.append(body[position])
            position += 1
    return bytes(out)


def crc32(content: bytes) -> int:
    """The CRC-32 of qCRC: polynomial 0x04c11db7, highest bit first, initial value all ones, not inverted."""
    value = 0xFFFFFFFF
    for byte in content:
        value ^= byte << 24
        for _ in range(8):
            value = (value << 1) ^ 0x04C11DB7 if value & 0x80000000 else value << 1
        value &= 0xFFFFFFFF
    return value
