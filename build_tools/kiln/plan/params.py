"""Where each parameter lies: in order of first use, equal ones once, each 64-byte aligned."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy.typing as npt

from kiln.plan.lifetimes import ALIGN, aligned, root_of, tensors_of


class ParameterStore:
    """The parameters of every bucket, one after the other; what is equal in content is stored once.

    They lie in the order in which steps read them, so that reading ahead reads the next one. `stored`
    describes each, `payload` are the bytes.
    """

    def __init__(self) -> None:
        self.stored: list[dict[str, Any]] = []
        self.payload = bytearray()
        self._known: dict[bytes, int] = {}

    def place(
        self,
        tensors: Mapping[str, dict[str, Any]],
        steps: Sequence[dict[str, Any]],
        values: Mapping[str, npt.NDArray[Any]],
        about: Callable[[str], dict[str, Any]] = lambda _name: {},
    ) -> dict[str, int]:
        """The offset of each tensor of `values` that a step uses; `about`: what else `stored` says of one."""
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
        """The offset of `value`, which is stored unless an equal one is."""
        data = value.tobytes()
        digest = hashlib.sha256(data).digest()
        if digest not in self._known:
            self.payload.extend(bytes(aligned(len(self.payload)) - len(self.payload)))
            self._known[digest] = len(self.payload)
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
        return self._known[digest]

    def content(self) -> bytes:
        """All bytes, filled up to a multiple of 64."""
        return bytes(self.payload) + bytes(aligned(len(self.payload), ALIGN) - len(self.payload))
