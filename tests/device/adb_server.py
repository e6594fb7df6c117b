"""An adb server with one device, whose shell is this machine's: for the real client without a phone.

It implements the host services, the shell protocol of version 2, and the sync service of
version 1. Source: the files OVERVIEW.TXT, SERVICES.TXT and SYNC.TXT of adb.
"""

from __future__ import annotations

import os
import socket
import socketserver
import struct
import subprocess
import threading
from pathlib import Path

VERSION = (
    b"0029"  # hexadecimal, of the protocol between client and server; another one is killed by the client
)
STDIN, STDOUT, STDERR, EXIT, CLOSE = range(5)


class AdbServer(socketserver.ThreadingTCPServer):
    """The server of one device, which it reports to be in `state`.

    `fails_at`: the number of pushes that succeed before one fails; None: all succeed.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, serial: str) -> None:
        super().__init__(("127.0.0.1", 0), _Client)
        self.serial, self.state, self.asked = serial, "device", list[str]()
        self.fails_at: int | None = None
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which adb's client connects to this server."""
        return {"ADB_SERVER_SOCKET": f"tcp:127.0.0.1:{self.server_address[1]}"}


class _Client(socketserver.StreamRequestHandler):
    server: AdbServer

    def handle(self) -> None:
        while True:
            head = self.rfile.read(4)
            if len(head) < 4:
                return
            service = self.rfile.read(int(head, 16)).decode()
            self.server.asked.append(service)
            if not self._serve(service):
                return

    def _serve(self, service: str) -> bool:
        """Answer one request; returns whether another one may follow on the connection."""
        serial = self.server.serial
        if service == "host:version":
            return self._say(VERSION)
        if service.startswith(("host:transport:", "host:tport:serial:")) or service.endswith(
            (":get-state", ":features")
        ):
            named = service.split(":")[1 if service.startswith("host-serial") else -1]
            if named != serial:
                return self._fail(f"device '{named}' not found")
            if service.endswith(":get-state"):
                return self._say(self.server.state.encode())
            if self.server.state != "device":
                return self._fail(f"device {self.server.state}.")
            if service.endswith(":features"):
                return self._say(b"shell_v2,cmd")
            self._write(b"OKAY" + (struct.pack("<Q", 1) if "tport" in service else b""))
            return True
        if service.startswith("shell,v2"):
            self._write(b"OKAY")
            self._shell(service.partition(":")[2])
        elif service == "sync:":
            self._write(b"OKAY")
            self._sync()
        else:
            self._fail(f"unknown service {service}")
        return False

    def _shell(self, command: str) -> None:
        process = subprocess.Popen(
            ["/bin/sh", "-c", command], stdin=-1, stdout=-1, stderr=-1, env={**os.environ, "HOME": "/"}
        )
        assert process.stdin and process.stdout and process.stderr
        lock, carriers = threading.Lock(), []

        def carry(kind: int, fd: int) -> None:
            while block := os.read(fd, 4096):
                with lock:
                    self._write(struct.pack("<BI", kind, len(block)) + block)

        for kind, pipe in ((STDOUT, process.stdout), (STDERR, process.stderr)):
            carriers.append(threading.Thread(target=carry, args=(kind, pipe.fileno()), daemon=True))
            carriers[-1].start()

        def feed() -> None:
            assert process.stdin
            try:
                while len(head := self.rfile.read(5)) == 5:
                    kind, size = struct.unpack("<BI", head)
                    content = self.rfile.read(size)
                    if kind == STDIN:
                        process.stdin.write(content)
                        process.stdin.flush()
                    elif kind == CLOSE:
                        process.stdin.close()
            except (OSError, ValueError):
                pass

        threading.Thread(target=feed, daemon=True).start()
        for carrier in carriers:
            carrier.join()
        status = process.wait()
        self._write(struct.pack("<BIB", EXIT, 1, status & 0xFF))
        self.request.shutdown(socket.SHUT_RDWR)  # or feed() would wait on, and closing for it

    def _sync(self) -> None:
        while len(head := self.rfile.read(8)) == 8:
            kind, size = struct.unpack("<4sI", head)
            if kind == b"QUIT":
                return
            path = self.rfile.read(size).decode()
            if kind == b"STAT":
                file = Path(path)
                status = file.stat() if file.exists() else None
                mode, length = (status.st_mode, status.st_size) if status else (0, 0)
                self._write(struct.pack("<4sIII", b"STAT", mode, length, 0))
            elif kind == b"SEND":
                self._receive(Path(path.rpartition(",")[0]))
            else:
                return

    def _receive(self, path: Path) -> None:
        fault, content = None, bytearray()
        while True:
            kind, size = struct.unpack("<4sI", self.rfile.read(8))
            if kind == b"DONE":
                break
            content += self.rfile.read(size)
        try:
            path.write_bytes(content)
        except OSError as error:
            fault = error.strerror
        if self.server.fails_at is not None:
            self.server.fails_at -= 1
            if self.server.fails_at < 0:
                fault = "couldn't create file: No space left on device"
        if fault:
            self._write(struct.pack("<4sI", b"FAIL", len(fault)) + fault.encode())
        else:
            self._write(struct.pack("<4sI", b"OKAY", 0))

    def _say(self, content: bytes) -> bool:
        self._write(b"OKAY%04x" % len(content) + content)
        return False  # the client waits for the end of the connection

    def _fail(self, text: str) -> bool:
        self._write(b"FAIL%04x" % len(text) + text.encode())
        return False

    def _write(self, content: bytes) -> None:
        self.wfile.write(content)
        self.wfile.flush()
