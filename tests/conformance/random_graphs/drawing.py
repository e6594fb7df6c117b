"""Random choices for graphs of every format: shapes, contents and names, which a seed determines."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
FLOAT, INT32, INT64, BOOL = "float32", "int32", "int64", "bool"
MOST_ELEMENTS = 4096  # of a tensor


class Drawing:
    """The source of every choice: `choice` of attributes and operators, `data` of contents."""

    def __init__(self, seed: int) -> None:
        self.choice = random.Random(seed)
        self.data = np.random.default_rng(seed)
        self._number = 0

    def name(self, stem: str) -> str:
        """A new name."""
        self._number += 1
        return f"{stem}{self._number}"

    def shape(self, most_rank: int = 4) -> tuple[int, ...]:
        """A random shape, of few elements."""
        while True:
            rank = self.choice.choice([0, 1, 2, 2, 3, 3, 4, 4, 4, 5][: 6 + most_rank])
            shape = tuple(self.choice.choice([1, 1, 2, 3, 4, 5, 7, 8, 16, 17]) for _ in range(rank))
            if np.prod(shape, dtype=int) <= MOST_ELEMENTS:
                return shape

    def array(self, shape: tuple[int, ...], dtype: str, most: float = 2.0) -> Array:
        """Random contents, of magnitude at most `most`."""
        if dtype == BOOL:
            return self.data.integers(0, 2, shape).astype(bool)
        if dtype == FLOAT:
            return self.data.uniform(-most, most, shape).astype(FLOAT)
        return self.data.integers(-int(most), int(most) + 1, shape).astype(dtype)

    def partner(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape that broadcasts with `shape`: axes of 1, or fewer axes."""
        sizes = [size if self.choice.random() < 0.6 else 1 for size in shape]
        return tuple(sizes[self.choice.choice([0, 0, 0, len(sizes) // 2, len(sizes)]) :])

    def regrouped(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Another shape of as many elements: axes joined or split."""
        factors = [f for size in shape for f in _factors(size)]
        if self.choice.random() < 0.3:
            factors.insert(self.choice.randint(0, len(factors)), 1)
        sizes: list[int] = []
        for factor in factors:
            if sizes and self.choice.random() < 0.6:
                sizes[-1] *= factor
            else:
                sizes.append(factor)
        return tuple(sizes) if len(sizes) <= 6 else (int(np.prod(shape, dtype=int)),)

    def section(self, size: int) -> tuple[int, int, int, int]:
        """Begin, end and step of a part of an axis, also backwards and beyond the ends, and its size."""
        step = self.choice.choice([1, 1, 2, 3, -1, -2])
        begin, end = sorted((self.choice.randint(0, size - 1), self.choice.randint(1, size)))
        end = max(end, begin + 1)
        if step < 0:
            begin, end = end - 1, begin - 1 - (size if begin == 0 else 0)
            end = end if end != -1 else -size - 1
        count = len(range(size)[slice(begin, None if end < -size else end, step)])
        if self.choice.random() < 0.3 and step > 0:
            begin -= size
        if self.choice.random() < 0.2 and step > 0 and end == size:
            end = 2**31 - 1
        return begin, end, step, count


def _factors(size: int) -> list[int]:
    for f in (2, 3, 5, 7):
        if size > f and size % f == 0:
            return [f, *_factors(size // f)]
    return [size]
