"""Weights for architectures that are there for their speed: seeded, and sized so that nothing explodes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Weights:
    """A stream of seeded values, the same on every machine and with every version of NumPy.

    Only the raw bits of PCG64 are used: NumPy promises those, not its distributions.
    """

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64(seed)

    def uniform(self, shape: tuple[int, ...], low: float, high: float) -> Array:
        """float32 values of that shape, evenly spread over [low, high)."""
        count = math.prod(shape)
        unit = (self._bits.random_raw(count) >> np.uint64(40)).astype(np.float64) / (1 << 24)
        values: Array = (low + unit * (high - low)).astype(np.float32).reshape(shape)
        return values

    def conv(self, out: int, inputs: int, kernel: int, gain: float = 2.0) -> Array:
        """Weights (out, inputs, kernel, kernel) of variance gain / fan-in.

        With gain 2 a ReLU keeps the variance of what flows through it (He et al., 2015,
        "Delving Deep into Rectifiers"); gain 1 is for layers that no ReLU follows.
        """
        bound = math.sqrt(3.0 * gain / (inputs * kernel * kernel))
        return self.uniform((out, inputs, kernel, kernel), -bound, bound)

    def batch_norm(self, channels: int, scale: float = 1.0) -> list[Array]:
        """Scale, bias, mean and variance near those that leave their input as it is, times `scale`."""
        shape = (channels,)
        return [
            self.uniform(shape, 0.9 * scale, 1.1 * scale),
            self.uniform(shape, -0.1 * scale, 0.1 * scale),
            self.uniform(shape, -0.1, 0.1),
            self.uniform(shape, 0.8, 1.2),
        ]

    def dense(self, out: int, inputs: int) -> tuple[Array, Array]:
        """Weights (out, inputs) and bias (out) of a last layer."""
        bound = math.sqrt(3.0 / inputs)
        return self.uniform((out, inputs), -bound, bound), self.uniform((out,), -0.1, 0.1)
