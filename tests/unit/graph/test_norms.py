"""Norms written as means and powers become one operator, and nothing else does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kiln.graph.norms import norms
from kiln.graph.pipeline import clean, simplify
from relaxed import const, module, operators, run_by_tvm
from tvm import relax

op = relax.op
SHAPE = (2, 3, 8)
GAMMA, BETA = np.linspace(0.5, 2, 8, dtype="f4"), np.linspace(-1, 1, 8, dtype="f4")
EPSILON = const(1e-5)


def _mean(x: Any) -> Any:
    return op.mean(x, [-1], keepdims=True)


def _layer_norm(x: Any) -> Any:
    centred = op.subtract(x, _mean(x))
    root = op.sqrt(op.add(_mean(op.power(centred, const(2.0))), EPSILON))
    return op.add(op.multiply(op.divide(centred, root), const(GAMMA)), const(BETA))


def _layer_norm_by_product(x: Any) -> Any:
    centred = op.subtract(x, op.mean(x, [2], keepdims=True))
    inverse = op.divide(const(1.0), op.sqrt(op.add(EPSILON, _mean(op.multiply(centred, centred)))))
    return op.add(const(BETA), op.multiply(const(GAMMA), op.multiply(centred, inverse)))


def _rms_norm(x: Any) -> Any:
    root = op.rsqrt(op.add(_mean(op.square(x)), EPSILON))
    return op.multiply(const(GAMMA), op.multiply(x, root))


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (_layer_norm, "nn.layer_norm"),
        (_layer_norm_by_product, "nn.layer_norm"),
        (_rms_norm, "nn.rms_norm"),
    ],
)
def test_a_norm_becomes_one_operator(body: Any, name: str) -> None:
    mod = module([(SHAPE, "float32")], body)
    changed = clean(norms(clean(mod)))
    assert operators(changed) == [name]
    x = np.random.default_rng(0).uniform(-2, 2, SHAPE).astype("f4")
    assert np.allclose(run_by_tvm(changed, [x])[0], run_by_tvm(mod, [x])[0], atol=2e-6)


def test_the_root_mean_square_of_a_vector() -> None:
    """One axis alone, over which TVM cannot lower the operator."""
    mod = module([((8,), "float32")], _rms_norm)
    changed = clean(norms(clean(mod)))
    assert "nn.rms_norm" in operators(changed)
    x = np.random.default_rng(0).uniform(-2, 2, 8).astype("f4")
    assert np.allclose(run_by_tvm(changed, [x])[0], run_by_tvm(mod, [x])[0], atol=2e-6)


def _other_axis(x: Any) -> Any:
    centred = op.subtract(x, op.mean(x, [1], keepdims=True))
    variance = op.mean(op.multiply(centred, centred), [1], keepdims=True)
    return op.divide(centred, op.sqrt(op.add(variance, EPSILON)))


def _another_tensor(x: Any) -> Any:
    return op.divide(op.negative(x), op.sqrt(op.add(_mean(op.multiply(x, x)), EPSILON)))


def _not_a_square(x: Any) -> Any:
    return op.divide(x, op.sqrt(op.add(_mean(op.power(x, const(4.0))), EPSILON)))


@pytest.mark.parametrize("body", [_other_axis, _another_tensor, _not_a_square])
def test_what_only_looks_like_a_norm_stays(body: Any) -> None:
    mod = clean(module([(SHAPE, "float32")], body))
    assert operators(norms(mod)) == operators(mod)


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.slow
def test_group_norm_between_convolutions(groups: int) -> None:
    """A group norm becomes means and products of NHWC tensors, without transposes between convolutions."""
    rng = np.random.default_rng(groups)
    first, second = rng.standard_normal((6, 3, 3, 3)), rng.standard_normal((4, 6, 1, 1))
    gamma, beta = const(rng.uniform(0.5, 2, 6)), const(rng.standard_normal(6))
    how: dict[str, Any] = {"num_groups": groups, "channel_axis": 1, "axes": [2, 3], "epsilon": 1e-3}

    def body(x: Any) -> Any:
        builder = relax.BlockBuilder.current()
        y = builder.emit(op.nn.group_norm(op.nn.conv2d(x, const(first)), gamma, beta, **how))
        return op.nn.conv2d(op.nn.relu(y), const(second))

    mod = module([((2, 3, 9, 8), "float32")], body)
    made = simplify(mod)
    assert operators(made).count("permute_dims") == 2 and "nn.group_norm" not in operators(made)
    x = rng.standard_normal((2, 3, 9, 8)).astype("f4")
    want, got = run_by_tvm(mod, [x])[0], run_by_tvm(made, [x])[0]
    assert np.abs(got - want).max() <= 2e-5 * np.abs(want).max()
