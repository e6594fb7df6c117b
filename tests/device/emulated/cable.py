"""A cable to the machine that is pulled after so many bytes: all connections end at once, on both sides.

Or it `stalls` there: the connections stay, and nothing goes through any more.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close without a goodbye


class Cable:
    """Carries connections from a port of its own to the machine's."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._ends: list[socket.socket] = []
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.carried = 0  # bytes, both ways
        self.pulled_at: int | None = None  # of them
        self.pulls = 0
        self.stalls = False
        self._moves = threading.Event()
        self._moves.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def pull(self) -> None:
        """Cut all connections."""
        with self._lock:
            ends, self._ends = self._ends, []
        for end in ends:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        """No more connections."""
        self._listener.close()
        self.pull()
        self._moves.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
                with self._lock:
                    self._ends += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while block := one.recv(65536):
                self._moves.wait()
                other.sendall(block)
                self.carried += len(block)
                if self.pulled_at is not None and self.carried >= self.pulled_at:
                    self.pulled_at = None
                    self.pulls += 1
                    if self.stalls:
                        self._moves.clear()
                    else:
                        self.pull()
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
