"""Convolutions of few terms that are read with channels first become matmuls of rows; others stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kiln.graph.pipeline import simplify
from kiln.lower.pointwise import pointwise
from relaxed import const, module, operators, run_by_tvm
from tvm import relax

op = relax.op
RNG = np.random.default_rng(6)


def _weights(*shape: int) -> Any:
    return const(RNG.standard_normal(shape).astype("float32"))


def _both(shape: tuple[int, ...], body: Any, isa: str) -> tuple[Any, Any]:
    mod = simplify(module([(shape, "float32")], body))
    return mod, pointwise(mod, isa)


@pytest.mark.parametrize(
    ("isa", "shape", "body"),
    [
        (
            "neon",
            (1, 1, 57),
            lambda x: op.nn.relu(op.add(op.nn.conv1d(x, _weights(160, 1, 10), 5), _weights(160, 1))),
        ),
        ("neon", (2, 2, 41), lambda x: op.nn.conv1d(x, _weights(128, 2, 4), 3, dilation=2)),
        ("neon", (2, 3, 13, 9), lambda x: op.nn.gelu(op.nn.conv2d(x, _weights(200, 3, 2, 2), (2, 1)))),
        ("avx2", (1, 1, 57), lambda x: op.nn.conv1d(x, _weights(24, 1, 8), 3, (2, 5))),
        ("avx2", (2, 3, 9, 13), lambda x: op.nn.conv2d(x, _weights(54, 3, 3, 3), (1, 2), (0, 1, 2, 3), 2)),
    ],
    ids=["one channel", "dilated", "image", "padded line", "padded image"],
)
def test_rows_of_terms(isa: str, shape: tuple[int, ...], body: Any) -> None:
    mod, changed = _both(shape, body, isa)
    assert "nn.conv2d" in operators(mod)
    assert not {"nn.conv2d", "permute_dims"} & set(operators(changed))
    x = RNG.uniform(-1, 1, shape).astype("f4")
    for want, got in zip(run_by_tvm(mod, [x]), run_by_tvm(changed, [x]), strict=True):
        assert got.shape == want.shape and np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.parametrize(
    "body",
    [
        lambda x: op.nn.conv2d(x, _weights(180, 3, 2, 2)),
        lambda x: op.nn.conv2d(x, _weights(200, 3, 5, 5)),
        lambda x: op.nn.max_pool2d(op.nn.conv2d(x, _weights(200, 3, 2, 2)), (2, 2)),
    ],
    ids=["few results", "many terms", "channels last behind"],
)
def test_others_stay(body: Any) -> None:
    mod, changed = _both((1, 3, 12, 12), body, "neon")
    assert operators(changed) == operators(mod)
