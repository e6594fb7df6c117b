"""Layout of the parameters: in order of first use, equal content once, each 64-byte aligned."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy.typing as npt

from kiln.plan.lifetimes import ALIGN, aligned, root_of, tensors_of


class ParameterStore:
    """The parameters of every bucket, one after the other; parameters of equal content are stored once.

    The order is that in which steps read parameters, so that prefetches beyond one parameter load the next.
    `stored`: description of each parameter in plan.json. `payload`: the bytes of all parameters.
    """

    def __init__(self) -> None:
        self.stored: list[dict[str, Any]] = []
        self.payload = bytearray()
        self._offsets: dict[bytes, int] = {}

    def place(
        self,
        tensors: Mapping[str, dict[str, Any]],
        steps: Sequence[dict[str, Any]],
        values: Mapping[str, npt.NDArray[Any]],
        about: Callable[[str], dict[str, Any]] = lambda _name: {},
    ) -> dict[str, int]:
        """Store each tensor of `values` that a step uses; return the offset in bytes of each.

        `about`: further entries of a tensor's description in `stored`.
        """
        offsets: dict[str, int] = {}
        for step in steps:
            for name in tensors_of(step):
                root = root_of(tensors, name)
                if root in values and root not in offsets:
                    offsets[root] = self.add(root, values[root], about)
        return offsets

    def add(
        self, name: str, value: npt.NDArray[Any], about: Callable[[str], dict[str, Any]] = lambda _name: {}
    ) -> int:
        """Store `value` unless its bytes are stored already; return the offset of these bytes.

        `about`: further entries of the description in `stored`.
        """
        data = value.tobytes()
        digest = hashlib.sha256(data).digest()
        if digest not in self._offsets:
            self.payload.extend(bytes(aligned(len(self.payload)) - len(self.payload)))
            self._offsets[digest] = len(self.payload)
            self.stored.append(
                {
                    "name": name,
                    "offset": len(self.payload),
                    "bytes": len(data),
                    "dtype": str(value.dtype),
                    "shape": list(value.shape),
                    **about(name),
                }
            )
            self.payload.extend(data)
        return self._offsets[digest]

    def content(self) -> bytes:
        """All bytes, padded with zeros to a multiple of 64."""
        return bytes(self.payload) + bytes(aligned(len(self.payload), ALIGN) - len(self.payload))
