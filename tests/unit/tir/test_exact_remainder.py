"""The remainder of floats is C's fmod, bit by bit: of vectors, of single elements, and of 16 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tvm import tirx

from .elements import elements_of

Array = npt.NDArray[Any]


def operands(dtype: str) -> tuple[Array, Array]:
    """All pairs of special numbers, random bits, and products of the divisor and their neighbours."""
    rng, limits = np.random.default_rng(0), np.finfo(dtype)
    least = limits.smallest_subnormal
    special = [0, -0.0, 1, -3, 0.1, np.inf, -np.inf, np.nan, limits.max, -limits.max, limits.tiny]
    special += [least, -5 * least, limits.tiny * 0.75, 2.0**15, 2.0**13 + 8]
    pairs = np.array(special, dtype)
    bits = {2: "u2", 4: "u4", 8: "u8"}[pairs.itemsize]
    x, y = rng.integers(0, np.iinfo(bits).max, (2, 4003), bits).view(dtype)
    with np.errstate(all="ignore"):
        near = (y * rng.integers(1, 1 << 30, y.size).astype(dtype)).astype(dtype)
        x = np.concatenate([np.repeat(pairs, pairs.size), x, near, np.nextafter(near, np.array(0, dtype))])
    return x, np.concatenate([np.tile(pairs, pairs.size), y, y, y])


@pytest.mark.parametrize(
    ("dtype", "vector_bits"),
    [("float32", 128), ("float32", 32), ("float64", 128), ("float64", 64), ("float16", 128)],
)
def test_remainders_are_exact(dtype: str, vector_bits: int, tmp_path: Path) -> None:
    x, y = operands(dtype)
    with np.errstate(all="ignore"):
        want = np.fmod(x, y)
    got = elements_of(lambda a, b, i: tirx.Mod(a[i], b[i]), [x, y], vector_bits, tmp_path)
    bits = f"u{x.itemsize}"
    wrong = np.flatnonzero((got.view(bits) != want.view(bits)) & ~(np.isnan(got) & np.isnan(want)))
    assert not wrong.size, [(x[i], y[i], got[i], want[i]) for i in wrong[:5]]
