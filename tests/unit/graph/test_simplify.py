"""ClipToMinMax, CancelTransposes, and what the whole list of passes guarantees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.graph.clip import clip_to_min_max
from kiln.graph.pipeline import PASSES, simplify
from kiln.graph.transposes import cancel_transposes
from relaxed import Body, const, module, operators, run_by_tvm
from tvm import relax

op = relax.op
RNG = np.random.default_rng(5)


def _unchanged(made: Any, changed: Any, shape: tuple[int, ...], dtype: str = "float32") -> None:
    x = RNG.uniform(-9, 9, shape).astype(dtype)
    for want, got in zip(run_by_tvm(made, [x]), run_by_tvm(changed, [x]), strict=True):
        assert got.shape == want.shape
        assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "int32", "int8"])
def test_clip(dtype: str) -> None:
    mod = module([((4, 9), dtype)], lambda x: op.clip(op.clip(x, -5, 6), 0, 3))
    changed = clip_to_min_max(mod)
    assert "clip" not in operators(changed)
    assert {"minimum", "maximum"} <= set(operators(changed))
    _unchanged(mod, changed, (4, 9), dtype)


@pytest.mark.parametrize(("low", "high"), [(1, 2**63 - 1), (-(2**63), 3), (-(2**53) - 1, 2**53 + 1)])
def test_clip_of_64_bit_integers_with_bounds_that_floats_do_not_hold(low: int, high: int) -> None:
    changed = clip_to_min_max(module([((4,), "int64")], lambda x: op.clip(x, low, high)))
    x = np.array([-(2**62) - 1, 0, 2**53 + 1, 2**62 + 1])
    assert np.array_equal(run_by_tvm(changed, [x])[0], np.clip(x, low, high))


# name → (body, operators that are left)
TRANSPOSES: dict[str, tuple[Body, list[str]]] = {
    "and_back": (lambda x: op.permute_dims(op.permute_dims(x, [0, 2, 3, 1]), [0, 3, 1, 2]), []),
    "two_in_a_row": (
        lambda x: op.permute_dims(op.permute_dims(x, [0, 2, 3, 1]), [0, 2, 1, 3]), ["permute_dims"],
    ),
    "reversed_twice": (lambda x: op.permute_dims(op.permute_dims(x)), []),
    "negative_axes": (lambda x: op.permute_dims(op.permute_dims(x, [0, 1, -1, -2]), [0, 1, 3, 2]), []),
    "of_size_one": (lambda x: op.permute_dims(x, [1, 0, 2, 3]), ["reshape"]),
    "of_nothing": (lambda x: op.permute_dims(x, [0, 1, 2, 3]), []),
    "reshape_of_reshape": (lambda x: op.reshape(op.reshape(x, [6, 20]), [4, 30]), ["reshape"]),
    "reshape_and_back": (lambda x: op.reshape(op.reshape(x, [6, 20]), [1, 4, 5, 6]), []),
    "reshape_to_itself": (lambda x: op.reshape(x, [1, 4, 5, 6]), []),
    "needed": (lambda x: op.permute_dims(x, [0, 3, 1, 2]), ["permute_dims"]),
    "with_something_between": (
        lambda x: op.permute_dims(op.nn.relu(op.permute_dims(x, [0, 2, 3, 1])), [0, 1, 3, 2]),
        ["permute_dims", "nn.relu", "permute_dims"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSPOSES)
@pytest.mark.slow
def test_transposes(name: str) -> None:
    body, left = TRANSPOSES[name]
    mod = module([((1, 4, 5, 6), "float32")], lambda x: op.negative(body(x)))
    changed = relax.transform.DeadCodeElimination()(cancel_transposes(mod))
    assert operators(changed) == [*left, "negative"]
    _unchanged(mod, changed, (1, 4, 5, 6))


def _network(x: Any) -> Any:
    """A small NCHW network with batch normalisation, ReLU6, a residual, pooling and a dense layer."""
    rng = np.random.default_rng(2)
    first = rng.standard_normal((8, 3, 3, 3)) / 5
    second = rng.standard_normal((8, 8, 3, 3)) / 8
    statistics = [const(rng.uniform(0.5, 1.5, 8)) for _ in range(4)]
    y = op.nn.conv2d(x, const(first), padding=1)
    y = op.nn.batch_norm(y, *statistics, axis=1, training=False)[0]
    y = op.clip(y, 0, 6)
    y = op.add(op.nn.conv2d(y, const(second), padding=1), y)
    y = op.nn.relu(op.nn.max_pool2d(y, 2, 2))
    y = op.reshape(op.mean(y, [2, 3]), [1, 8])
    return op.nn.softmax(op.matmul(y, const(rng.standard_normal((8, 5)))))


def test_the_whole_list_of_passes(tmp_path: Path) -> None:
    mod = module([((1, 3, 10, 8), "float32")], _network)
    changed = simplify(mod, tmp_path)
    left = operators(changed)
    assert "clip" not in left
    assert "nn.batch_norm" not in left
    assert left.count("permute_dims") == 1, "only the input's"
    assert left.count("nn.conv2d") == 2
    x = RNG.uniform(-1, 1, (1, 3, 10, 8)).astype("f4")
    (want,), (got,) = run_by_tvm(mod, [x]), run_by_tvm(changed, [x])
    assert np.abs(got - want).max() < 1e-6
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        f"{index:02d}-{name}.txt" for index, (name, _) in enumerate(PASSES)
    ]


def test_simplifying_again_changes_nothing() -> None:
    once = simplify(module([((1, 3, 10, 8), "float32")], _network))
    assert operators(simplify(once)) == operators(once)


def test_attention_computes_nothing_twice() -> None:
    """Two layers of attention share the mask, which exporters compute in each layer anew."""
    weights = const(RNG.standard_normal((8, 24)).astype("f4"))
    constants = {name: const(value) for name, value in (("one", 1.0), ("many", -1e4), ("scale", 0.35))}

    def layer(x: Any, mask: Any) -> Any:
        hidden = op.multiply(op.subtract(constants["one"], mask), constants["many"])
        q, k, v = (op.split(op.matmul(x, weights), 3, -1)[part] for part in range(3))
        scores = op.multiply(op.matmul(q, op.permute_dims(k, [0, 2, 1])), constants["scale"])
        return op.matmul(op.nn.softmax(op.add(scores, hidden), -1), v)

    mod = module([((1, 6, 8), "float32"), ((1, 1, 6), "float32")], lambda x, m: layer(layer(x, m), m))
    changed = simplify(mod)
    operators_left = operators(changed)
    assert operators_left.count("subtract") == 1  # the mask, of both layers
    assert (
        operators_left.count("matmul") + operators_left.count("einsum") == 2 * 5
        and "split" not in operators_left
    )
    inputs = [RNG.uniform(-1, 1, (1, 6, 8)).astype("f4"), np.ones((1, 1, 6), "f4")]
    (want,), (got,) = run_by_tvm(mod, inputs), run_by_tvm(changed, inputs)
    assert np.abs(got - want).max() <= 1e-5
