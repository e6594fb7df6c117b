"""Properties of a model's `precision`: the type in which tensors are stored, and the GPUs that support it."""

from __future__ import annotations

from typing import Any

# Precisions that store tensors in 16 bits, and the storage type; the others store float32.
_NARROW = {"fp16": "float16", "bf16": "bfloat16"}
# First GPU architecture with tensor cores for a precision (PTX ISA, "wmma.mma"); fp16: sm_70.
FIRST_ARCH = {"tf32": 80, "bf16": 80}


def stored(precision: str) -> str:
    """Storage type, where possible, of weights and of tensors between kernels."""
    return _NARROW.get(precision, "float32")


def is_narrow(precision: str) -> bool:
    """Whether the storage type of `precision` has 16 bits."""
    return precision in _NARROW


def holds(dtype: str, values: Any) -> bool:
    """Whether all finite elements of an array are in the range of the floating-point type `dtype`."""
    import ml_dtypes  # here, as SCons reads this file when it starts
    import numpy as np

    finite = values[np.isfinite(values)]
    largest = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
    return not finite.size or bool(np.abs(finite).max() <= largest)
