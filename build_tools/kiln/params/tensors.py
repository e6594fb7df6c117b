"""Tensors by name in a safetensors file, with bfloat16, which the package's reader for NumPy refuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import safetensors
from safetensors.numpy import save as _save

Tensors = dict[str, npt.NDArray[Any]]
_TYPES: dict[str, Any] = {
    "BOOL": np.bool_,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F32": np.float32,
    "F64": np.float64,
    **{f"I{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"U{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
}


def save(tensors: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """The content of a safetensors file with `tensors`, which need not be contiguous."""
    content: bytes = _save({name: np.asarray(tensor, order="C") for name, tensor in tensors.items()})
    return content


def load(content: bytes) -> Tensors:
    """Inverse of `save`: tensors by name. Raises safetensors.SafetensorError if `content` is damaged."""
    return {
        name: np.frombuffer(entry["data"], _TYPES[entry["dtype"]]).reshape(entry["shape"])
        for name, entry in safetensors.deserialize(content)  # type: ignore[no-untyped-call]
    }
