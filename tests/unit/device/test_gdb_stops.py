"""The gdb transport's handling of stop packets, with gdb servers that send them differently."""

from __future__ import annotations

import contextlib
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from kiln.device.deploy.transports import Answer, gdb
from kiln.device.microcontroller.image import Image
from kiln.errors import KilnError

EXIT = 0x40
PROGRAM = b"hello 12"  # memory from address 0: an initial stack pointer and an entry point


class Server(socketserver.StreamRequestHandler):
    """A gdb server whose program prints, fails to open a file, and stops at EXIT with 7 in r0."""

    disable_nagle_algorithm = True
    events = (b"Fwrite,1,0,6", b"Fopen,0/5,0,0", b"T05thread:01;")
    asked: ClassVar[list[bytes]]

    def handle(self) -> None:
        while byte := self.rfile.read(1):
            if byte == b"\x03":
                self.interrupted()
            if byte == b"$":
                body = b"".join(iter(lambda: self.rfile.read(1), b"#"))
                self.rfile.read(2)
                self.wfile.write(b"+")
                self.asked.append(body)
                self.send(self.answer(body))

    def send(self, packet: bytes | None) -> None:
        """Send a packet; nothing for None."""
        if packet is not None:
            self.wfile.write(b"$" + packet + b"#%02x" % (sum(packet) & 0xFF))

    def interrupted(self) -> None:
        """Ignore an interrupt."""

    def answer(self, body: bytes) -> bytes | None:
        """Returns the answer to a packet; None for no answer."""
        if body == b"c" or body.startswith(b"F"):
            return self.events[sum(ask.startswith(b"F") for ask in self.asked) % len(self.events)]
        if body.startswith(b"m"):
            address, count = (int(word, 16) for word in body[1:].split(b","))
            return (PROGRAM if address == 0 else bytes(8))[:count].hex().encode()
        known = {b"pf": b"%02x000000" % EXIT, b"p0": b"07000000"}
        return known.get(body, b"OK" if body[:1] in b"MPZz" else b"")


class Qemu(Server):
    """QEMU since 8.1: it sends no stop packet when the last packet that it received was a File-I/O reply."""

    stops_at_flag = True

    def answer(self, body: bytes) -> bytes | None:
        if body == b"qqemu.sstepbits":
            return b"ENABLE=1,NOIRQ=2,NOTIMER=4"
        if body.startswith(b"F") and body.endswith(b",C"):
            return b"T02" if self.stops_at_flag else b"E01"
        event = super().answer(body)
        silent = body.startswith(b"F") and event is not None and event.startswith(b"T")
        return None if silent else event


class Refusing(Qemu):
    """A gdb server that knows QEMU's packets and answers the Ctrl-C flag with an error."""

    stops_at_flag = False


class Losing(Server):
    """A gdb server that sends no stop packet at all."""

    def answer(self, body: bytes) -> bytes | None:
        return None if body == b"c" else super().answer(body)


class Calling(Server):
    """A gdb server whose program prints and begins a File-I/O request when it is interrupted."""

    def answer(self, body: bytes) -> bytes | None:
        if body == b"F-1,4,C":
            return b"T02"
        return None if body == b"c" else super().answer(body)

    def interrupted(self) -> None:
        self.send(b"O68656c6c6f")
        self.send(b"Fread,0,0,4")


class Leaving(Server):
    """A gdb server that reports the program's exit and closes the connection."""

    def answer(self, body: bytes) -> bytes | None:
        if body == b"c":
            self.wfile.write(b"$W03#ba")
            self.connection.close()
            raise ConnectionAbortedError
        return super().answer(body)


class Listener(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing about a connection that was closed."""


@contextlib.contextmanager
def opened(server: type[Server], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[gdb.GdbTransport]:
    program = folder / "program.elf"
    program.write_bytes(b"\x7fELF")
    image = Image(program, "0" * 64, [(0, PROGRAM)], EXIT, None)
    monkeypatch.setattr(gdb, "read_image", lambda path: image)
    server.asked = []
    with Listener(("127.0.0.1", 0), server) as listener:
        threading.Thread(target=listener.serve_forever, args=(0.02,), daemon=True).start()
        address = f"127.0.0.1:{listener.server_address[1]}"
        transport = gdb.GdbTransport("chip", gdb.GdbSettings(kind="gdb", address=address, timeout=1))
        transport.send({"./program": program})
        try:
            yield transport
        finally:
            transport.close()
            listener.shutdown()


@pytest.mark.parametrize(
    ("server", "answers"),
    [(Server, [b"F6", b"F-1,2"]), (Qemu, [b"F6,0,C", b"F-1,2,C"])],
)
def test_a_stop_after_file_operations_is_seen(
    server: type[Server], answers: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(server, tmp_path, monkeypatch) as transport:
        for _ in range(2):
            server.asked.clear()
            assert transport.run(["./program"], timeout=20) == Answer(7, b"hello ", "")
            assert [ask for ask in server.asked if ask.startswith(b"F")] == answers


@pytest.mark.parametrize(
    ("server", "told"),
    [
        (Refusing, "the gdb server answers a File-I/O reply with 'E01', a stop with signal 2 expected"),
        (Calling, "still running after 0.1 s, was stopped"),
        (Losing, "still running after 0.1 s, and the gdb server reports no stop"),
    ],
    ids=["refusing", "calling", "losing"],
)
def test_a_run_without_its_stop_packet_is_one_line(
    server: type[Server], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 20 if server is Refusing else 0.1
    with opened(server, tmp_path, monkeypatch) as transport, pytest.raises(KilnError) as error:
        transport.run(["./program"], timeout=limit)
    assert told in str(error.value) and "\n" not in str(error.value)


def test_an_exit_is_its_status_though_the_server_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(Leaving, tmp_path, monkeypatch) as transport:
        assert transport.run(["./program"], timeout=20).status == 3
