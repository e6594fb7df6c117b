"""Levels that only a cheap function of the same element reads: one kernel rounds twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax

from .lowered import Array, Compiled, const, module, runnable

op = relax.op

SHAPE = (3, 257)
TINY = np.float32(0.1)
# The first quantisation, the function, and the second: scale, zero point and type of each.
CASES: dict[str, tuple[tuple[float, int, str], Any, Any, tuple[float, int, str]]] = {
    "relu6": (
        (0.06, -10, "int8"), lambda x: op.minimum(op.maximum(x, const(0.0)), const(6.0)),
        lambda x: np.clip(x, 0, 6), (6 / 255, -128, "int8"),
    ),
    "relu6 of less": (
        (0.03, 0, "int8"), lambda x: op.minimum(op.nn.relu(x), const(6.0)),
        lambda x: np.clip(x, 0, 6), (6 / 255, -128, "int8"),
    ),
    "limits inside": (
        (0.02, 128, "uint8"), lambda x: op.minimum(op.maximum(x, const(-1.0)), const(1.01)),
        lambda x: np.clip(x, np.float32(-1), np.float32(1.01)), (0.03, 3, "int8"),
    ),
    "limit between levels": (
        (0.02, 0, "int16"), lambda x: op.minimum(x, const(3.8)),
        lambda x: np.minimum(x, np.float32(3.8)), (0.03, 0, "int8"),
    ),
    "factor and shift": (
        (0.05, 100, "uint8"), lambda x: op.add(op.multiply(x, const(TINY)), const(TINY)),
        lambda x: x * TINY + TINY, (0.00437, 7, "int8"),
    ),
    "slope": (
        (0.05, 1, "int8"), lambda x: op.nn.leakyrelu(x, 0.1),
        lambda x: np.where(x < 0, x * TINY, x), (0.03, 100, "uint8"),
    ),
}  # fmt: skip


def _levels(x: Array, scale: float, zero: int, dtype: str) -> Array:
    limits, inverse = np.iinfo(dtype), np.float32(1) / np.float32(scale)
    least, most = (np.float32(end - zero) for end in (limits.min, limits.max))
    within = np.minimum(np.where(x * inverse > least, x * inverse, least), most)  # NaN: the least
    return (np.rint(within) + zero).astype(dtype)


def _numbers(levels: Array, scale: float, zero: int, _: str) -> Array:
    return ((levels.astype("int32") - zero).astype("float32") * np.float32(scale)).astype("float32")


@pytest.mark.parametrize("target", ["host", "x86_64"])
def test_two_roundings_are_one_kernel(target: str, tmp_path: Path) -> None:
    x = np.random.default_rng(5).normal(0, 4, SHAPE).astype("float32")
    x[0, :8] = [np.nan, np.inf, -np.inf, 3e38, -3e38, 1e9, -1e9, 0]

    def body(data: Any) -> list[Any]:
        made = []
        for (scale, zero, dtype), function, _, (scale2, zero2, dtype2) in CASES.values():
            levels = op.quantize(data, const(scale), const(zero, dtype), out_dtype=dtype)
            real = op.dequantize(levels, const(scale), const(zero, dtype), out_dtype="float32")
            made.append(op.quantize(function(real), const(scale2), const(zero2, dtype2), out_dtype=dtype2))
        return made

    compiled = Compiled(module([(SHAPE, "float32")], body), runnable(target), tmp_path).load()
    assert len(compiled.steps) == len(CASES)
    with np.errstate(all="ignore"):
        wants = [
            _levels(function(_numbers(_levels(x, *first), *first)).astype("float32"), *second)
            for first, _, function, second in CASES.values()
        ]
    for name, got, want in zip(CASES, compiled.run([x]), wants, strict=True):
        np.testing.assert_array_equal(got, want, name)


def test_levels_that_two_read_and_those_of_channels_stay(tmp_path: Path) -> None:
    scales, zeros = const(np.full(4, 0.1, "float32")), const(np.zeros(4), "int8")

    def body(a: Any, b: Any) -> list[Any]:
        levels = op.quantize(a, const(0.1), const(0, "int8"), out_dtype="int8")
        real = op.nn.relu(op.dequantize(levels, const(0.1), const(0, "int8"), out_dtype="float32"))
        channels = op.quantize(b, scales, zeros, 1, "int8")
        parts = op.nn.relu(op.dequantize(channels, scales, zeros, 1, "float32"))
        again = [op.quantize(x, const(0.2), const(0, "int8"), out_dtype="int8") for x in (real, parts)]
        return [levels, *again]

    compiled = Compiled(module([((4, 4), "float32")] * 2, body), runnable("x86_64"), tmp_path)
    assert len(compiled.steps) == 4
