"""Layout of the parameters: in order of first use, equal content once, each 64-byte aligned."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy.typing as npt

from kiln.lower.schema import Step, TensorRecord
from kiln.plan.lifetimes import ALIGN, aligned, root_of
from kiln.plan.schema import StoredTensor
from kiln.plan.transforms import Origin


class ParameterStore:
    """The parameters of every bucket, one after the other; parameters of equal content are stored once.

    The order is that in which steps read parameters, so that prefetches beyond one parameter load the next.
    `stored`: description of each parameter in plan.json. `payload`: the bytes of all parameters.
    """

    def __init__(self) -> None:
        self.stored: list[StoredTensor] = []
        self.payload = bytearray()
        self._offsets: dict[bytes, int] = {}

    def place(
        self,
        tensors: Mapping[str, TensorRecord],
        steps: Sequence[Step],
        values: Mapping[str, npt.NDArray[Any]],
        origin: Callable[[str], Origin] = lambda _name: Origin(),
    ) -> dict[str, int]:
        """Store each tensor of `values` that a step uses; return the offset in bytes of each.

        `origin` returns the Origin of a tensor, given its name.
        """
        offsets: dict[str, int] = {}
        for step in steps:
            for name in step.tensors:
                root = root_of(tensors, name)
                if root in values and root not in offsets:
                    offsets[root] = self.add(root, values[root], origin(root))
        return offsets

    def add(self, name: str, value: npt.NDArray[Any], origin: Origin) -> int:
        """Store `value` unless its bytes are stored already; return the offset of these bytes."""
        data = value.tobytes()
        digest = hashlib.sha256(data).digest()
        if digest not in self._offsets:
            self.payload.extend(bytes(aligned(len(self.payload)) - len(self.payload)))
            self._offsets[digest] = len(self.payload)
            self.stored.append(
                StoredTensor(
                    name=name,
                    offset=len(self.payload),
                    bytes=len(data),
                    dtype=origin.dtype or str(value.dtype),
                    shape=list(value.shape),
                    made=origin.made,
                    bytes_before=origin.bytes_before,
                    of=origin.of,
                )
            )
            self.payload.extend(data)
        return self._offsets[digest]

    def content(self) -> bytes:
        """All bytes, padded with zeros to a multiple of 64."""
        return bytes(self.payload) + bytes(aligned(len(self.payload), ALIGN) - len(self.payload))
