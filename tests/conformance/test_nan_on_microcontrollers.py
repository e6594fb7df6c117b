"""Comparisons, limits and tests of floats that are NaN, on a core that compares vectors of them, in QEMU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from kiln.config import load_target
from tvm import relax

from .lowered import const, module
from .test_kernels_microcontrollers import run_steps

op = relax.op
# Two vectors and a rest.
X = np.array([1, -1, np.nan, 0, np.inf, -np.inf, 2.5, np.nan, -0.0, 3, 4], "float32")
Y = np.roll(X, 1)


def chosen(compare: Any) -> Any:
    """10 where x compares with 0.5, else 20."""
    return lambda x: op.where(compare(x, const(0.5)), const(10.0), const(20.0))


CASES = [
    (op.isnan, np.isnan(X)),
    (op.nn.relu, np.where(X < 0, np.float32(0), X)),
    (lambda x: op.clip(x, -1.5, 1.5), np.clip(X, np.float32(-1.5), np.float32(1.5))),
    (lambda x: op.maximum(x, const(Y)), np.maximum(X, Y)),
    (lambda x: op.minimum(x, const(Y)), np.minimum(X, Y)),
    *(
        (chosen(getattr(op, name)), np.where(getattr(np, name)(X, 0.5), np.float32(10), np.float32(20)))
        for name in ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")
    ),
]


def test_nan_is_neither_less_nor_greater(tmp_path: Path) -> None:
    mod = module(
        [((X.size,), "float32")] * len(CASES),
        lambda *xs: [make(x) for (make, _), x in zip(CASES, xs, strict=True)],
    )
    run_steps(mod, [(X, want) for _, want in CASES], load_target("cortex_m55"), tmp_path)
