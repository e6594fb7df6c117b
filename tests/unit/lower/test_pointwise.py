"""Convolutions of single pixels between channels-first tensors become matmuls; others stay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from kiln.graph.pipeline import simplify
from kiln.lower.pointwise import pointwise
from relaxed import const, module, operators, run_by_tvm
from tvm import relax, tirx

op = relax.op
RNG = np.random.default_rng(5)
CONV = {1: op.nn.conv1d, 2: op.nn.conv2d, 3: op.nn.conv3d}


def _weights(*shape: int, dtype: str = "float32") -> Any:
    return const(RNG.standard_normal(shape), dtype)


def _changed(shape: Sequence[Any], body: Any, dtype: str = "float32") -> tuple[Any, Any]:
    """A module as `simplify` leaves it, and after the pass."""
    mod = simplify(module([(shape, dtype)], body))
    return mod, pointwise(mod, "avx2")


@pytest.mark.parametrize("sizes", [(31,), (5, 7), (3, 4, 5)])
@pytest.mark.parametrize(("batch", "groups"), [(1, 1), (3, 1), (2, 3)])
def test_a_matmul_and_what_follows(sizes: tuple[int, ...], batch: int, groups: int) -> None:
    ones = [1] * len(sizes)

    def body(x: Any) -> Any:
        y = CONV[len(sizes)](x, _weights(9, 6 // groups, *ones), groups=groups)
        y = op.nn.relu(op.add(y, _weights(1, 9, *ones)))
        return op.subtract(const(2.0), op.multiply(y, _weights(9, *ones)))

    mod, changed = _changed((batch, 6, *sizes), body)
    assert {"nn.conv2d", "permute_dims"} <= set(operators(mod))
    assert not {"nn.conv2d", "permute_dims"} & set(operators(changed)) and "matmul" in operators(changed)
    x = RNG.uniform(-1, 1, (batch, 6, *sizes)).astype("f4")
    for want, got in zip(run_by_tvm(mod, [x]), run_by_tvm(changed, [x]), strict=True):
        assert got.shape == want.shape and np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


def test_dynamic_sizes() -> None:
    sizes = [tirx.Var(name, "int64") for name in "nhw"]
    shape = [sizes[0], 6, *sizes[1:]]
    _, changed = _changed(shape, lambda x: op.nn.conv2d(x, _weights(9, 6, 1, 1)))
    assert operators(changed) == ["reshape", "matmul", "reshape"]


def _two_readers(x: Any) -> Any:
    y = op.nn.conv2d(x, _weights(9, 6, 1, 1))
    return [y, op.nn.max_pool2d(y, (2, 2))]


@pytest.mark.parametrize(
    "body",
    [
        lambda x: op.nn.conv2d(x, _weights(9, 6, 1, 1), strides=(2, 2)),
        lambda x: op.nn.conv2d(x, _weights(9, 6, 1, 1), padding=(0, 1, 0, 0)),
        lambda x: op.nn.conv2d(x, _weights(9, 6, 1, 2)),
        lambda x: op.nn.conv2d(x, _weights(6, 1, 1, 1), groups=6),
        lambda x: op.add(op.nn.conv2d(x, _weights(9, 6, 1, 1)), _weights(1, 1, 5, 7)),
        lambda x: op.multiply(op.nn.conv2d(x, _weights(1, 6, 1, 1)), _weights(1, 5, 1, 1)),
        lambda x: op.nn.max_pool2d(op.nn.conv2d(x, _weights(9, 6, 1, 1)), (2, 2)),
        _two_readers,
    ],
    ids=[
        "stride",
        "padding",
        "kernel",
        "depthwise",
        "constant of pixels",
        "constant of more channels",
        "channels last behind",
        "two readers",
    ],
)
def test_others_stay(body: Any) -> None:
    _, changed = _changed((2, 6, 5, 7), body)
    assert "nn.conv2d" in operators(changed) and "matmul" not in operators(changed)


@pytest.mark.parametrize(("channels", "dtype"), [(256, "float32"), (6, "float16")])
def test_many_channels_and_other_types_stay(channels: int, dtype: str) -> None:
    weights = _weights(channels, channels, 1, 1, dtype=dtype)
    _, changed = _changed((1, channels, 5, 7), lambda x: op.nn.conv2d(x, weights), dtype)
    assert "nn.conv2d" in operators(changed) and "matmul" not in operators(changed)
