"""Memory for an input whose neighbours may not be read: a read outside ends the process."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

PAGE = mmap.PAGESIZE
LIBC = ctypes.CDLL(None, use_errno=True)


class Fenced:
    """Memory of `size` bytes at one end of pages between two pages without access."""

    def __init__(self, size: int, at_end: bool) -> None:
        pages = -(-size // PAGE)
        self._map = mmap.mmap(-1, (pages + 2) * PAGE)
        first = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        for fence in (first, first + (pages + 1) * PAGE):
            assert LIBC.mprotect(ctypes.c_void_p(fence), ctypes.c_size_t(PAGE), 0) == 0
        begin = PAGE + (pages * PAGE - size if at_end else 0)
        self.bytes = np.frombuffer(self._map, "u1", size, begin)
        self.pointer = ctypes.c_void_p(first + begin)

    def check(self, name: str) -> None:
        """Do nothing: the pages without access end the process at a read outside."""
