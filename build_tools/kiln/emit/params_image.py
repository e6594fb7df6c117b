"""params.bin: a header that binds the parameters to the code, then the parameters.

The layout and the checksum are described, and checked, in runtime_c/src/params.c.
"""

from __future__ import annotations

import struct

import numpy as np

HEADER_BYTES = 128
ALIGN = 64
_MAGIC = b"KILNPAR1"
_VERSION = 1
_PRIME = 2**32 - 5
_BLOCK = 1 << 16  # words; their weighted sum stays below 2^64


def checksum(padded: bytes) -> int:
    """Fletcher's checksum over little-endian 32-bit words modulo 2^32 - 5: second sum << 32 | first sum."""
    words = np.frombuffer(padded, dtype="<u4")
    first = second = 0
    for start in range(0, len(words), _BLOCK):
        block = words[start : start + _BLOCK].astype(np.uint64)
        count = len(block)
        weights = np.arange(count, 0, -1, dtype=np.uint64)
        second = (second + count * first + int(np.dot(block, weights))) % _PRIME
        first = (first + int(block.sum())) % _PRIME
    return second << 32 | first


def params_image(payload: bytes, model_hash: bytes) -> bytes:
    """Header and `payload`, padded with zeros to a multiple of 64 bytes. `model_hash` is 32 bytes."""
    padded = payload + bytes(-len(payload) % ALIGN)
    header = (
        _MAGIC + struct.pack("<IIQQ", _VERSION, HEADER_BYTES, len(payload), checksum(padded)) + model_hash
    )
    return header + bytes(HEADER_BYTES - len(header)) + padded
