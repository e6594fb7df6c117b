"""Random weights for models that serve to measure speed: seeded, and scaled so that values stay bounded."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Weights:
    """A stream of random values from a seed, equal on every machine and with every version of NumPy.

    Only the raw bits of PCG64 are used: NumPy guarantees the bits, but not its distributions.
    """

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64(seed)

    def uniform(self, shape: tuple[int, ...], low: float, high: float) -> Array:
        """float32 values of shape `shape`, uniformly distributed over [low, high)."""
        count = math.prod(shape)
        unit = (self._bits.random_raw(count) >> np.uint64(40)).astype(np.float64) / (1 << 24)
        values: Array = (low + unit * (high - low)).astype(np.float32).reshape(shape)
        return values

    def conv(self, out: int, inputs: int, kernel: int, gain: float = 2.0) -> Array:
        """Weights (out, inputs, kernel, kernel) of variance gain / fan-in.

        With gain 2 a ReLU preserves the variance of its input (He et al., 2015, "Delving Deep into
        Rectifiers"); gain 1 is for layers that no ReLU follows.
        """
        bound = math.sqrt(3.0 * gain / (inputs * kernel * kernel))
        return self.uniform((out, inputs, kernel, kernel), -bound, bound)

    def batch_norm(self, channels: int, scale: float = 1.0) -> list[Array]:
        """Scale, bias, mean and variance of a norm that approximately multiplies its input by `scale`."""
        shape = (channels,)
        return [
            self.uniform(shape, 0.9 * scale, 1.1 * scale),
            self.uniform(shape, -0.1 * scale, 0.1 * scale),
            self.uniform(shape, -0.1, 0.1),
            self.uniform(shape, 0.8, 1.2),
        ]

    def dense(self, out: int, inputs: int) -> tuple[Array, Array]:
        """Weights (out, inputs) and bias (out) of the last layer."""
        bound = math.sqrt(3.0 / inputs)
        return self.uniform((out, inputs), -bound, bound), self.uniform((out,), -0.1, 0.1)
