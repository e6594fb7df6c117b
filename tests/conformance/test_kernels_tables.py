"""Chains of elementwise operators on one 8-bit tensor: tables with the values of every level."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax

from .lowered import Array, Compiled, const, module, runnable

op = relax.op
_erf = np.vectorize(math.erf, otypes=[np.float64])


def _levels(x: Any, scale: float, zero: int, dtype: str = "int8") -> Any:
    return op.quantize(x, const(scale), const(zero, dtype), out_dtype=dtype)


def _real(x: Any, scale: float, zero: int, dtype: str = "int8") -> Any:
    return op.dequantize(x, const(scale), const(zero, dtype), out_dtype="float32")


def _again(x: Any, scale: float, zero: int) -> Any:
    return _real(_levels(x, scale, zero), scale, zero)


def _gelu(q: Any) -> Any:
    """A GELU as quantisers write it: every operator between a quantize and a dequantize."""
    x = _real(q, 0.05, -3)
    inner = _again(op.erf(_again(op.multiply(x, const(1 / math.sqrt(2))), 0.035, -3)), 1 / 127, 0)
    half = _again(op.multiply(x, _again(op.add(inner, const(1.0)), 2 / 255, -128)), 0.1, -100)
    return _levels(op.multiply(half, const(0.5)), 0.05, -100)


def _np_levels(x: Array, scale: float, zero: int, low: int = -128, high: int = 127) -> Array:
    return np.clip(np.rint(x.astype("f4") / np.float32(scale)) + zero, low, high)


def _np_again(x: Array, scale: float, zero: int) -> Array:
    return ((_np_levels(x, scale, zero) - zero) * np.float32(scale)).astype("f4")


def _np_gelu(q: Array) -> Array:
    x = ((q.astype("f4") + 3) * np.float32(0.05)).astype("f4")
    inner = _np_again(_erf(_np_again(x * np.float32(1 / math.sqrt(2)), 0.035, -3)), 1 / 127, 0)
    half = _np_again(x * _np_again(inner + np.float32(1), 2 / 255, -128), 0.1, -100)
    return _np_levels(half * np.float32(0.5), 0.05, -100)


def _hard_swish(q: Any) -> Any:
    x = _real(q, 0.06, 130, "uint8")
    gate = op.clip(op.add(x, const(3.0)), 0, 6)
    return _levels(_again(op.multiply(x, op.divide(gate, const(6.0))), 0.03, -115), 0.03, 13, "uint8")


def _np_hard_swish(q: Array) -> Array:
    x = ((q.astype("f4") - 130) * np.float32(0.06)).astype("f4")
    gate = np.clip(x + np.float32(3), 0, 6) / np.float32(6)
    return _np_levels(_np_again(x * gate, 0.03, -115), 0.03, 13, 0, 255)


def _elu(q: Any) -> Any:
    """An ELU whose ReLU the graph's passes have moved to the levels."""
    x, limited = _real(q, 0.02, -43), op.maximum(q, const(-43, "int8"))
    below = op.multiply(op.nn.relu(op.subtract(const(1.0), op.exp(x))), const(-1.0))
    return _levels(op.add(below, _real(limited, 0.02, -43)), 0.017, -60)


def _np_elu(q: Array) -> Array:
    x = ((q.astype("f4") + 43) * np.float32(0.02)).astype("f4")
    below = -np.maximum(np.float32(1) - np.exp(x.astype("f8")).astype("f4"), 0)
    return _np_levels(below + np.maximum(x, 0), 0.017, -60)


CHAINS: dict[str, tuple[str, Any, Any]] = {
    "elu": ("int8", _elu, _np_elu),
    "gelu": ("int8", _gelu, _np_gelu),
    "hard_swish": ("uint8", _hard_swish, _np_hard_swish),
    "sigmoid": (
        "uint8",
        lambda q: _levels(op.sigmoid(_real(q, 0.07, 120, "uint8")), 1 / 256, -128),
        lambda q: _np_levels(1 / (1 + np.exp(-(q - 120.0) * np.float32(0.07))), 1 / 256, -128),
    ),
}
# Lengths: less than a vector, vectors and a rest, more than a task.
SHAPES = ((7,), (3, 256), (5, 1031))


@pytest.mark.parametrize("target", ["host", "x86_64", "x86_64_v2"])
def test_tables(target: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    inputs, bodies, wants = [], [], []
    for name, (dtype, body, want) in CHAINS.items():
        for shape in SHAPES if name == "gelu" else SHAPES[1:2]:
            limits = np.iinfo(dtype)
            x = rng.integers(limits.min, limits.max + 1, shape).astype(dtype)
            if x.size >= 256:
                x.reshape(-1)[-256:] = np.arange(256, dtype="uint8").view(dtype)
            inputs.append(x)
            bodies.append(body)
            wants.append(want(x))
    mod = module(
        [(x.shape, str(x.dtype)) for x in inputs],
        lambda *xs: [body(x) for body, x in zip(bodies, xs, strict=True)],
    )
    compiled = Compiled(mod, runnable(target), tmp_path).load()
    assert set(compiled.families) == {"table"} and len(compiled.steps) == len(inputs)
    for got, want in zip(compiled.run(inputs), wants, strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_rescaling_and_two_tensors_are_no_table(tmp_path: Path) -> None:
    def body(a: Any, b: Any) -> list[Any]:
        both = op.multiply(op.sigmoid(_real(a, 0.1, 0)), _real(b, 0.1, 0))
        return [_levels(_real(a, 0.1, 0), 0.2, 0), _levels(both, 0.1, 0)]

    compiled = Compiled(module([((4, 8), "int8")] * 2, body), runnable("x86_64"), tmp_path)
    assert "table" not in compiled.families
