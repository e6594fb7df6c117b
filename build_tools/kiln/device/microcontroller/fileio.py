"""Files for a program without a file system: gdb's File-I/O, to which a gdb server maps Cortex-M semihosting.

Files exist in memory only, under the names of the files that were sent or created, so a device cannot reach
any file of this machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kiln.device.microcontroller.rsp import Rsp

_ENOENT, _EBADF, _EINVAL, _ENOSYS = 2, 9, 22, 88
_WRITE, _CREATE, _TRUNCATE, _APPEND = 0x3, 0x200, 0x400, 0x8
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")  # names of files that a program may create
_MOST = 1 << 28  # limit of bytes per file, so that a faulty program cannot fill this machine's memory


@dataclass
class _Open:
    content: bytearray
    at: int = 0
    writable: bool = False
    append: bool = False


@dataclass
class Files:
    """The files of a program: contents by name, and its output on stdout and stderr."""

    contents: dict[str, bytearray] = field(default_factory=dict)
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    _open: dict[int, _Open] = field(default_factory=dict)

    def give(self, files: Mapping[str, bytes]) -> None:
        """Add files, contents by name."""
        self.contents.update({name: bytearray(content) for name, content in files.items()})

    def serve(self, rsp: Rsp, packet: bytes) -> None:
        """Execute the File-I/O request in the packet `F…`, and send the reply."""
        name, *words = packet[1:].split(b",")
        calls: dict[bytes, Callable[..., int]] = {
            b"open": self._open_file, b"close": self._close, b"read": self._read, b"write": self._write,
            b"lseek": self._lseek, b"fstat": self._fstat, b"isatty": self._isatty,
        }  # fmt: skip
        try:
            status = calls[name](rsp, *words) if name in calls else -_ENOSYS
        except (ValueError, TypeError, KeyError):
            status = -_EINVAL
        rsp.reply_to_call(status)

    def _open_file(self, rsp: Rsp, path: bytes, flags: bytes, mode: bytes) -> int:
        del mode
        address, _, count = path.partition(b"/")
        name = rsp.read(int(address, 16), min(int(count, 16), 4096)).rstrip(b"\0").decode("utf-8", "replace")
        how = int(flags, 16)
        if name == ":tt":
            return 2 if how & _APPEND else 1 if how & _WRITE else 0
        if name not in self.contents and how & _CREATE and _NAME.fullmatch(name):
            self.contents[name] = bytearray()
        if name not in self.contents:
            return -_ENOENT
        if how & _TRUNCATE:
            self.contents[name].clear()
        number = max([2, *self._open]) + 1
        self._open[number] = _Open(self.contents[name], 0, bool(how & _WRITE), bool(how & _APPEND))
        return number

    def _close(self, rsp: Rsp, number: bytes) -> int:
        del rsp
        if int(number, 16) <= 2:
            return 0
        return 0 if self._open.pop(int(number, 16), None) is not None else -_EBADF

    def _read(self, rsp: Rsp, number: bytes, address: bytes, count: bytes) -> int:
        file = self._open.get(int(number, 16))
        if file is None:
            return 0 if int(number, 16) == 0 else -_EBADF
        piece = bytes(file.content[file.at : file.at + int(count, 16)])
        rsp.write(int(address, 16), piece)
        file.at += len(piece)
        return len(piece)

    def _write(self, rsp: Rsp, number: bytes, address: bytes, count: bytes) -> int:
        piece = rsp.read(int(address, 16), int(count, 16))
        if int(number, 16) in (1, 2):
            sink = self.stdout if int(number, 16) == 1 else self.stderr
            sink += piece[: _MOST - len(sink)]
            return len(piece)
        file = self._open.get(int(number, 16))
        if file is None or not file.writable:
            return -_EBADF
        if file.append:
            file.at = len(file.content)
        if file.at + len(piece) > _MOST:
            return -_EINVAL
        file.content += bytes(max(0, file.at - len(file.content)))
        file.content[file.at : file.at + len(piece)] = piece
        file.at += len(piece)
        return len(piece)

    def _lseek(self, rsp: Rsp, number: bytes, offset: bytes, flag: bytes) -> int:
        del rsp
        file = self._open.get(int(number, 16))
        if file is None:
            return -_EBADF
        base = {0: 0, 1: file.at, 2: len(file.content)}[int(flag, 16)]
        if base + int(offset, 16) < 0:
            return -_EINVAL
        file.at = base + int(offset, 16)
        return file.at

    def _fstat(self, rsp: Rsp, number: bytes, address: bytes) -> int:
        """Write File-I/O's struct stat to the device: 64 bytes, big-endian; only the size is set."""
        file = self._open.get(int(number, 16))
        if file is None:
            return -_EBADF
        rsp.write(int(address, 16), bytes(28) + len(file.content).to_bytes(8, "big") + bytes(28))
        return 0

    def _isatty(self, rsp: Rsp, number: bytes) -> int:
        del rsp
        return int(int(number, 16) <= 2)
