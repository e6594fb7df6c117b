"""params.bin: a header that binds the parameters to the code, then the parameters.

The layout and the checksum are described, and checked, in runtime_c/core/params.c.
"""

from __future__ import annotations

import struct
import zlib

HEADER_BYTES = 128
ALIGN = 64
_MAGIC = b"KILNPAR1"
_VERSION = 2


def params_image(payload: bytes, model_hash: bytes) -> bytes:
    """Content of params.bin: the header, then `payload` padded with zeros to a multiple of 64 bytes.

    `model_hash` has 32 bytes.
    """
    padded = payload + bytes(-len(payload) % ALIGN)
    header = (
        _MAGIC + struct.pack("<IIQQ", _VERSION, HEADER_BYTES, len(payload), zlib.crc32(padded)) + model_hash
    )
    return header + bytes(HEADER_BYTES - len(header)) + padded
