"""Factors of resizes in float32, of which ONNX and ONNX Runtime compute the sizes that PyTorch has."""

from __future__ import annotations

import numpy as np
from kiln.frontend.torch.resizes import _in_float32


def test_a_factor_gives_the_size_in_exact_and_in_float32_products() -> None:
    for size in range(1, 200):
        for factor in (1.3, 0.6, 1.7, 0.1, 2.9, 1 / size, 7 / size, (size + 1) / size):
            narrow, wanted = _in_float32(size, factor), int(size * factor)
            assert int(size * narrow) == int(np.float32(size) * np.float32(narrow)) == wanted
