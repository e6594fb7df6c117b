"""Short constructors for records of interface.json and golden.json, for tests without a whole model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kiln.config.interface import PortRecord, Quantisation
from kiln.golden.schema import GoldenEntry, GoldenFile, GoldenTensor, ReferenceRecord


def port(
    name: str, shape: Sequence[Any], dtype: str = "float32", quant: Quantisation | None = None
) -> PortRecord:
    return PortRecord(name=name, c_name=name, dtype=dtype, shape=list(shape), quant=quant)


def golden_tensor(name: str, shape: Sequence[int] = (), dtype: str = "float32", **more: Any) -> GoldenTensor:
    return GoldenTensor(**{"file": f"{name}.bin", "name": name, "dtype": dtype, "shape": list(shape), **more})


def golden_file(vectors: Sequence[GoldenEntry], **more: Any) -> GoldenFile:
    reference = ReferenceRecord(name="none", version="0", settings={})
    return GoldenFile(model="m", reference=reference, rule={}, vectors=list(vectors), **more)
