"""Inputs for ResNet8 with different logits, and the greatest difference from LiteRT's logits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

INPUTS = 40
# Measured against BUILTIN: 12 of 400 logits one level off, 2 three levels (an addition doubles a one-level
# difference of its input), the others equal; BUILTIN_REF is up to 5 levels from both, BUILTIN and this
# import.
MOST_LEVELS = 3
LEAST_EQUAL = 0.9


def pictures() -> list[npt.NDArray[np.int8]]:
    """Half white noise, half blocks of even colour: noise alone leaves most late channels dead."""
    generator = np.random.default_rng(8)
    noise = [generator.integers(-128, 128, (1, 32, 32, 3)) for _ in range(INPUTS // 2)]
    blocks = [
        generator.integers(-128, 128, (1, 32 // size, 32 // size, 3)).repeat(size, 1).repeat(size, 2)
        for size in (2, 4, 8, 16)
        for _ in range(INPUTS // 8)
    ]
    return [picture.astype(np.int8) for picture in noise + blocks]
