"""Where each parameter lies: in order of first use, equal ones once, each 64-byte aligned."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt

from kiln.plan.lifetimes import ALIGN, aligned, root_of


def lay_out(
    tensors: Mapping[str, dict[str, Any]],
    steps: Sequence[dict[str, Any]],
    values: Mapping[str, npt.NDArray[Any]],
) -> tuple[list[dict[str, Any]], dict[str, int], bytes]:
    """(description of each stored tensor, offset by name, the bytes).

    Parameters lie in the order in which steps read them, so that reading ahead reads the next one.
    """
    stored: list[dict[str, Any]] = []
    offsets: dict[str, int] = {}
    known: dict[bytes, int] = {}
    payload = bytearray()
    for step in steps:
        for name in step["args"]:
            root = root_of(tensors, name)
            if root not in values or root in offsets:
                continue
            data = values[root].tobytes()
            digest = hashlib.sha256(data).digest()
            if digest not in known:
                payload.extend(bytes(aligned(len(payload)) - len(payload)))
                known[digest] = len(payload)
                stored.append(
                    {
                        "name": root,
                        "offset": len(payload),
                        "bytes": len(data),
                        "dtype": str(values[root].dtype),
                        "shape": list(values[root].shape),
                    }
                )
                payload.extend(data)
            offsets[root] = known[digest]
    payload.extend(bytes(aligned(len(payload), ALIGN) - len(payload)))
    return stored, offsets, bytes(payload)
