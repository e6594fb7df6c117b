"""Vector files: tensors sent to a target and back. The comment in `programs/harness.h` defines the format."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from kiln.arrays import Array
from kiln.errors import KilnError

_MAGIC = b"KILNVEC1"


def encode(vectors: Sequence[Sequence[Array]]) -> bytes:
    """A vector file of `vectors`, little-endian; all vectors have equally many tensors."""
    chunks = [_MAGIC, struct.pack("<II", len(vectors), len(vectors[0]) if vectors else 0)]
    for vector in vectors:
        for tensor in vector:
            content = np.ascontiguousarray(tensor, tensor.dtype.newbyteorder("<")).tobytes()
            chunks.append(struct.pack("<IIQ", tensor.ndim, 0, len(content)))
            chunks.append(struct.pack(f"<{tensor.ndim}q", *tensor.shape))
            chunks.append(content)
    return b"".join(chunks)


def encode_shapes(vectors: Sequence[Sequence[Sequence[int]]], tensors: int) -> bytes:
    """A vector file of shapes without elements, `tensors` shapes per vector: for inputs that are refused."""
    chunks = [_MAGIC, struct.pack("<II", len(vectors), tensors)]
    for vector in vectors:
        chunks += [struct.pack(f"<IIQ{len(shape)}q", len(shape), 0, 0, *shape) for shape in vector]
    return b"".join(chunks)


def decode(content: bytes, dtypes: Sequence[str]) -> list[list[Array]]:
    """Decode a vector file; `dtypes` are the element types of the tensors of each vector.

    Raises KilnError when the file is truncated or its header differs, as after a killed program.
    """
    try:
        magic, count, tensors = struct.unpack_from("<8sII", content)
        if magic != _MAGIC or tensors != len(dtypes):
            raise ValueError("its header is not that of this model's outputs")
        offset, vectors = 16, []
        for _ in range(count):
            vector = []
            for dtype in dtypes:
                rank, _, size = struct.unpack_from("<IIQ", content, offset)
                shape = struct.unpack_from(f"<{rank}q", content, offset + 16)
                offset += 16 + 8 * rank
                if offset + size > len(content):
                    raise ValueError(f"{len(content)} bytes, at least {offset + size} expected")
                kind = np.dtype(dtype).newbyteorder("<")
                vector.append(
                    np.frombuffer(content[offset : offset + size], kind).reshape(shape).astype(dtype)
                )
                offset += size
            vectors.append(vector)
    except (struct.error, ValueError) as error:
        raise KilnError(f"the test program's output file is damaged: {error}") from error
    return vectors
