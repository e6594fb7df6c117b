"""Values moved up and down, by which a reference measures how much its outputs change."""

from __future__ import annotations

import numpy as np

from kiln.arrays import Array

TIE_CHANGE = 2**-18  # moves no value by more than 1/1000 of a level
_LEVELS = 255


def nudged(value: Array, generator: np.random.Generator) -> Array:
    """Floats with each element moved up or down by the fraction TIE_CHANGE."""
    signs = generator.integers(0, 2, value.shape) * 2 - 1
    return np.asarray(value * (1 + signs * TIE_CHANGE), value.dtype)


def perturbed(value: Array, step: float | None, generator: np.random.Generator) -> Array:
    """Floats with each element moved by `step` up or down, None: 1/255 of their range; integers unchanged."""
    if value.dtype.kind != "f" or not value.size:
        return value
    step = step or float(np.ptp(value.astype(np.float64))) / _LEVELS
    signs = generator.integers(0, 2, value.shape) * 2 - 1
    return np.asarray(value + signs * step, value.dtype)
