"""Tensors by name as a file of safetensors, with bfloat16, which the package's reader for NumPy refuses."""

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
    """The file's content; tensors need not be contiguous."""
    content: bytes = _save({name: np.asarray(tensor, order="C") for name, tensor in tensors.items()})
    return content


def load(content: bytes) -> Tensors:
    """What `save` was given. Raises safetensors.SafetensorError where the content is damaged."""
    return {
        name: np.frombuffer(found["data"], _TYPES[found["dtype"]]).reshape(found["shape"])
        for name, found in safetensors.deserialize(content)  # type: ignore[no-untyped-call]
    }
