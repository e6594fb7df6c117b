"""Convolutions on 8-bit integers, scaled in fixed point: every bit of their results, in QEMU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.config import load_target
from relaxed import const, module
from tvm import relax

from .arithmetic import Array
from .int8_cases import Case, data_of, expression_of, sums_of
from .test_kernels_microcontrollers import run_steps


@dataclass(frozen=True)
class Scaled:
    """((sums of `conv`) m + b >> shift) + level, as int8; with `residual` x m' is added before the shift."""

    conv: Case
    shift: int
    level: int = 0
    residual: bool = False
    shared: bool = False  # one m and one b for all channels
    far: bool = False  # m and b of which the results before the limits need more than 32 bits


def _depthwise(channels: int, kernel: int, size: tuple[int, int], dtype: str = "int8", **more: Any) -> Case:
    return Case((1, *size, channels), (kernel, kernel, 1, channels), dtype, groups=channels, **more)


CASES = [
    Scaled(_depthwise(1, 3, (6, 7)), 36, -3),
    Scaled(_depthwise(3, 3, (7, 9)), 33, 5),
    Scaled(_depthwise(8, 3, (7, 6), "uint8", stride=2), 36),
    Scaled(_depthwise(20, 5, (9, 8)), 40, -128),
    Scaled(_depthwise(64, 3, (8, 7), dilation=2), 35, 127),
    Scaled(_depthwise(8, 3, (5, 6), x="least", w="least"), 56, 1),
    Scaled(_depthwise(12, 1, (4, 5)), 38, -7, residual=True),
    Scaled(_depthwise(16, 3, (5, 7)), 37, 9, shared=True),
    Scaled(_depthwise(8, 3, (5, 5)), 32, 2),
    # Up to 32 the lower words of sums are part of the result, which may not fit 32 bits.
    Scaled(_depthwise(8, 3, (5, 4)), 32, -128, far=True),
    Scaled(_depthwise(8, 3, (4, 5)), 31, 0, far=True),
    Scaled(_depthwise(8, 3, (4, 6)), 31, -9),
    Scaled(_depthwise(12, 1, (5, 6), "uint8"), 24, 100, residual=True),
    Scaled(_depthwise(4, 1, (5, 7)), 13, -100, far=True),
    Scaled(_depthwise(8, 1, (5, 8)), 2, far=True),
    # With Helium: results of four channels as vectors, of channels that are left, of two rows by two.
    Scaled(Case((1, 5, 6, 16), (3, 3, 16, 8), "int8"), 38, 4),
    Scaled(Case((1, 3, 5, 80), (1, 1, 80, 7), "int8"), 31, far=True),
    Scaled(Case((1, 4, 5, 80), (1, 1, 80, 4), "int8"), 30, far=True),
    Scaled(Case((1, 3, 4, 80), (1, 1, 80, 80), "int8"), 37, 3, residual=True),
    Scaled(Case((1, 4, 5, 32), (3, 3, 32, 8), "int8"), 36, -6),
]


def _factors(rng: np.random.Generator, case: Scaled, sums: Array) -> tuple[Array, Array]:
    """m and b with which results are spread over a bit more than the levels of int8."""
    shape = (1,) if case.shared else sums.shape[-1:]
    greatest = 2.0**30 if case.far else 150 * 2.0**case.shift / np.abs(sums).max()
    m = rng.uniform(-1, 1, shape) * min(greatest, 2.0**30 - 1)
    b = rng.uniform(-1, 1, shape) * 2.0 ** (60 if case.far else case.shift + 6)
    return np.round(m).astype("int32"), np.round(b).astype("int64")


@pytest.mark.parametrize("name", ["cortex_m55", pytest.param("cortex_m4", marks=pytest.mark.heavy)])
def test_scaled_sums_are_exact(name: str, tmp_path: Path) -> None:
    """But for uint8 with Helium, which is moved to int8 in a step of its own."""
    target = load_target(name)
    cases = [case for case in CASES if (target.vector.isa, case.conv.dtype) != ("mve", "uint8")]
    data = [data_of(case.conv, seed) for seed, case in enumerate(cases)]
    expected, numbers = [], []
    for seed, (case, (x, weights)) in enumerate(zip(cases, data, strict=True)):
        rng, sums = np.random.default_rng(seed), sums_of(case.conv, x, weights)
        m, b = _factors(rng, case, sums)
        reach = 2 ** min(30, case.shift)
        extra = rng.integers(-reach, reach, x.shape[-1:]).astype("int32") if case.residual else None
        total = sums.astype("int64") * m + b
        if extra is not None:
            total += x.astype("int64") * extra
        numbers.append((m, b, extra))
        expected.append((x, np.clip((total >> case.shift) + case.level, -128, 127).astype("int8")))

    def scaled(case: Scaled, x: Any, weights: Array, m: Array, b: Array, extra: Array | None) -> Any:
        op = relax.op

        def product(value: Any, factor: Array) -> Any:
            return op.multiply(op.astype(value, "int64"), op.astype(const(factor, "int32"), "int64"))

        total = product(expression_of(case.conv, x, weights), m)
        if extra is not None:
            total = op.add(total, product(x, extra))
        moved = op.right_shift(op.add(total, const(b, "int64")), const(case.shift, "int64"))
        moved = op.add(moved, const(case.level, "int64"))
        limited = op.minimum(op.maximum(moved, const(-128, "int64")), const(127, "int64"))
        return op.astype(limited, "int8")

    mod = module(
        [(case.conv.shape, case.conv.dtype) for case in cases],
        lambda *xs: [
            scaled(case, x, weights, *found)
            for case, x, (_, weights), found in zip(cases, xs, data, numbers, strict=True)
        ],
    )
    assert run_steps(mod, expected, target, tmp_path) == {"depthwise", "conv2d"}
