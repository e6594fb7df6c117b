"""Weights whose values come from 16-bit floats, or from few levels, as in models with small weights."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def _generator(*numbers: int) -> np.random.Generator:
    """A generator of its own for each case, so that no test before changes its numbers."""
    return np.random.default_rng([13, *numbers])


def half(shape: tuple[int, ...]) -> Array:
    """Numbers of float16, some of them subnormal."""
    value = _generator(*shape).standard_normal(shape).astype("f2")
    value.reshape(-1)[::7] *= np.float16(1e-5)
    value.reshape(-1)[:2] = [-0.0, 6e-8]
    return value.astype("f4")


def brain(shape: tuple[int, ...]) -> Array:
    """Numbers of bfloat16."""
    return _generator(*shape).standard_normal(shape).astype(ml_dtypes.bfloat16).astype("f4")


def levels(
    shape: tuple[int, ...], bits: int, block: tuple[int, int], zero: bool = False, half_scales: bool = False
) -> Array:
    """(level - zero) * scale in blocks of `block` of the matrix (all axes but the last, the last axis)."""
    rows, columns = int(np.prod(shape[:-1])), shape[-1]
    block = (min(block[0], rows), min(block[1], columns))  # else `repeat` fills memory for nothing
    down, across = -(-rows // block[0]), -(-columns // block[1])
    generator = _generator(*shape, bits, *block, zero, half_scales)
    scales = generator.uniform(0.01, 0.1, (down, across)).astype("f2" if half_scales else "f4").astype("f4")
    zeros = (
        generator.integers(0, 1 << bits, (down, across)) if zero else np.full((down, across), 1 << bits - 1)
    )

    def spread(blocks: Array) -> Array:
        spread_values: Array = blocks.repeat(block[0], 0)[:rows].repeat(block[1], 1)[:, :columns]
        return spread_values

    numbers = generator.integers(0, 1 << bits, (rows, columns)) - spread(zeros)
    return (numbers.astype("f4") * spread(scales)).reshape(shape)
