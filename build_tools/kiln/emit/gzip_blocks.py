"""Gzip on several processor cores: blocks of fixed size, each a member of its own, compressed side by side.

A file of several members is what RFC 1952 calls a gzip file, and what gunzip, tar and Python read as one. The
bytes depend on the content alone, not on the number of cores.
"""

from __future__ import annotations

import io
import os
import zlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, BinaryIO

_BLOCK = 1 << 20  # bytes; members cost 18 bytes each and forget what came before
_LEVEL = 6
_GZIP = 31  # zlib's `wbits` for a gzip header without a date


class GzipWriter(io.RawIOBase):
    """A stream to write to, which `tarfile` takes; what it makes goes to `raw`."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._cores = os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(self._cores)  # zlib lets other threads run
        self._waiting = bytearray()
        self._members: deque[Future[bytes]] = deque()
        self._written = 0

    def __enter__(self) -> GzipWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._pool:
            if kind is None:
                if self._waiting or not self._written:
                    self._submit(bytes(self._waiting))
                self._put(0)
        self.close()

    def write(self, data: Any) -> int:
        """Take `data`. Raises OSError where `raw` cannot be written."""
        self._waiting += data
        self._written += len(data)
        whole = len(self._waiting) // _BLOCK * _BLOCK
        for start in range(0, whole, _BLOCK):
            self._submit(bytes(self._waiting[start : start + _BLOCK]))
        del self._waiting[:whole]
        return len(data)

    def tell(self) -> int:
        """Bytes taken so far."""
        return self._written

    def _submit(self, block: bytes) -> None:
        self._members.append(self._pool.submit(_member, block))
        self._put(2 * self._cores)

    def _put(self, most: int) -> None:
        """Write members in order until no more than `most` are under way."""
        while len(self._members) > most:
            self._raw.write(self._members.popleft().result())


def _member(block: bytes) -> bytes:
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    return compressor.compress(block) + compressor.flush()
