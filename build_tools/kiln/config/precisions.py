"""What a model's `precision` means: the type that tensors are stored in, and the GPUs that multiply it."""

from __future__ import annotations

from typing import Any

# Precisions that store tensors in 16 bits, and the type; the others store float32.
_NARROW = {"fp16": "float16", "bf16": "bfloat16"}
# The first architecture with matrix units for it (PTX ISA, "wmma.mma"); others have them from sm_70 on.
FIRST_ARCH = {"tf32": 80, "bf16": 80}


def stored(precision: str) -> str:
    """The type in which tensors between kernels, and weights, are stored where they can be."""
    return _NARROW.get(precision, "float32")


def is_narrow(precision: str) -> bool:
    """Whether that type has 16 bits."""
    return precision in _NARROW


def holds(dtype: str, values: Any) -> bool:
    """Whether no finite element of an array is too large for this type of floating point."""
    import ml_dtypes  # here, as SCons reads this file when it starts
    import numpy as np

    finite = values[np.isfinite(values)]
    largest = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
    return not finite.size or bool(np.abs(finite).max() <= largest)
