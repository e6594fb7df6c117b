"""Parallel gzip: blocks of fixed size, each a gzip member, compressed on several processor cores.

RFC 1952 defines a gzip file as a sequence of members, and gunzip, tar and Python read it as one stream. The
bytes depend on the content alone, not on the number of cores.

Weights have no repetitions, so the search for them takes most of the time and saves nothing: a block of which
samples become hardly smaller by it is only Huffman-coded, in a third of the time.
"""

from __future__ import annotations

import io
import os
import zlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, BinaryIO

_BLOCK = 1 << 20  # bytes; a member costs 18 bytes and starts with an empty dictionary
_LEVEL = 6
_SAMPLES, _SAMPLE = 4, 1 << 14  # number and bytes of the samples of a block
_SAVED = 0.02  # part of the samples' bytes that repetitions must save
_GZIP = 31  # zlib's `wbits` for a gzip header without a date


class GzipWriter(io.RawIOBase):
    """A writable stream (for `tarfile`) that compresses its input and writes the gzip members to `raw`."""

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
        """Append `data` and return its length. Raises OSError if `raw` cannot be written."""
        self._waiting += data
        self._written += len(data)
        complete = len(self._waiting) // _BLOCK * _BLOCK
        for start in range(0, complete, _BLOCK):
            self._submit(bytes(self._waiting[start : start + _BLOCK]))
        del self._waiting[:complete]
        return len(data)

    def tell(self) -> int:
        """Number of uncompressed bytes written so far."""
        return self._written

    def _submit(self, block: bytes) -> None:
        self._members.append(self._pool.submit(_member, block))
        self._put(2 * self._cores)

    def _put(self, limit: int) -> None:
        """Write members to `raw` in order, until at most `limit` are still pending."""
        while len(self._members) > limit:
            self._raw.write(self._members.popleft().result())


def _member(block: bytes) -> bytes:
    if len(block) < _SAMPLES * _SAMPLE:
        return _compressed(block, zlib.Z_DEFAULT_STRATEGY)
    starts = (len(block) * number // _SAMPLES for number in range(_SAMPLES))
    samples = b"".join(block[start : start + _SAMPLE] for start in starts)
    strategies = (zlib.Z_DEFAULT_STRATEGY, zlib.Z_HUFFMAN_ONLY)
    searched, coded = (len(_compressed(samples, strategy)) for strategy in strategies)
    return _compressed(block, strategies[coded - searched < _SAVED * len(samples)])


def _compressed(data: bytes, strategy: int) -> bytes:
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP, zlib.DEF_MEM_LEVEL, strategy)
    return compressor.compress(data) + compressor.flush()
