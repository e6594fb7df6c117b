"""Products of two activations in any order of axes, and attention as a whole, against numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.graph.pipeline import simplify
from tvm import relax

from . import arithmetic
from .lowered import Array, Compiled, close, const, module, runnable

op = relax.op
# rows, columns, depth: single ones, odd ones, whole tiles and vectors and one more
SIZES = [(1, 33, 5), (3, 1, 7), (17, 19, 17), (14, 32, 16), (29, 65, 33)]


@pytest.mark.parametrize(
    ("subscripts", "target"),
    [
        pytest.param("abk,akc->abc", "host", marks=pytest.mark.heavy),
        ("abk,akc->abc", "x86_64"),
        pytest.param("abk,ack->abc", "host", marks=pytest.mark.heavy),
        ("abk,ack->abc", "x86_64_v2"),
        ("akb,akc->abc", "x86_64"),
        ("abk,akc->bac", "x86_64"),
        ("abk,ack->acb", "x86_64"),
        ("bak,kac->abc", "x86_64"),
    ],
)
def test_products(subscripts: str, target: str, tmp_path: Path) -> None:
    """Every order of axes; a is the batch, or one more axis of rows."""
    rng = np.random.default_rng(5)
    operands = subscripts.split("->")[0].split(",")
    shapes = [
        [[{"a": 3, "b": rows, "c": columns, "k": depth}[axis] for axis in axes] for axes in operands]
        for rows, columns, depth in SIZES
    ]
    inputs = [rng.uniform(-1, 1, shape).astype("f4") for pair in shapes for shape in pair]

    def body(*variables: Any) -> list[Any]:
        pairs = zip(variables[::2], variables[1::2], strict=True)
        return [op.einsum(relax.Tuple(list(pair)), subscripts) for pair in pairs]

    mod = module([(x.shape, "float32") for x in inputs], body)
    compiled = Compiled(mod, runnable(target), tmp_path).load()
    assert compiled.families.count("contraction") >= len(SIZES) - 1  # one column: some orders leave no vector
    for got, left, right in zip(compiled.run(inputs), inputs[::2], inputs[1::2], strict=True):
        close(got, np.einsum(subscripts, left.astype("f8"), right.astype("f8")), 3e-6)


MATMULS = {
    "batch_broadcast": ((2, 1, 5, 9), (1, 3, 9, 21)),
    "one_batch_for_all": ((2, 3, 5, 9), (9, 21)),
    "vector_times_matrices": ((9,), (3, 9, 21)),
    "matrices_times_vector": ((3, 5, 9), (9,)),
    "long": ((2, 50, 300), (2, 300, 40)),
}


@pytest.mark.parametrize("name", MATMULS)
def test_matmul(name: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    inputs = [rng.uniform(-1, 1, shape).astype("f4") for shape in MATMULS[name]]
    mod = module([(x.shape, "float32") for x in inputs], lambda a, b: op.add(op.matmul(a, b), const(0.5)))
    compiled = Compiled(mod, runnable("x86_64"), tmp_path).load()
    assert compiled.families[0] == "contraction"
    close(compiled.run(inputs)[0], np.matmul(*(x.astype("f8") for x in inputs)) + 0.5, 1e-5)


def test_a_tensor_times_itself(tmp_path: Path) -> None:
    x = np.random.default_rng(1).uniform(-1, 1, (2, 19, 7)).astype("f4")
    mod = module([(x.shape, "float32")], lambda x: op.einsum(relax.Tuple([x, x]), "abk,ack->abc"))
    close(Compiled(mod, runnable("x86_64"), tmp_path).load().run([x])[0], x @ x.transpose(0, 2, 1), 1e-5)


def _attention(length: int, heads: int, width: int, weights: list[Array]) -> Any:
    """Multi-head attention with a mask and a residual, as exporters write it."""
    features = heads * width

    def split(x: Any, axes: list[int]) -> Any:
        return op.permute_dims(op.reshape(x, [2, length, heads, width]), axes)

    def body(x: Any, mask: Any) -> Any:
        flat = op.reshape(x, [2 * length, features])
        q, k, v = (op.reshape(op.matmul(flat, const(w)), [2, length, features]) for w in weights[:3])
        scores = op.matmul(split(q, [0, 2, 1, 3]), split(k, [0, 2, 3, 1]))
        scores = op.add(op.divide(scores, const(np.sqrt(width))), mask)
        mixed = op.matmul(op.nn.softmax(scores, -1), split(v, [0, 2, 1, 3]))
        joined = op.reshape(op.permute_dims(mixed, [0, 2, 1, 3]), [2 * length, features])
        result = op.reshape(op.matmul(joined, const(weights[3])), [2, length, features])
        result = op.add(result, x)
        ones, zeros = np.ones(features, "f4"), np.zeros(features, "f4")
        return op.nn.layer_norm(result, const(ones), const(zeros), [-1], 1e-5)

    return body


@pytest.mark.parametrize(
    ("length", "heads", "width"),
    [
        (1, 2, 4),
        pytest.param(7, 3, 5, marks=pytest.mark.heavy),
        (33, 2, 16),
        pytest.param(64, 4, 32, marks=pytest.mark.heavy),
    ],
)
def test_attention(length: int, heads: int, width: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(length)
    features = heads * width
    x = rng.uniform(-1, 1, (2, length, features)).astype("f4")
    mask = np.where(rng.uniform(size=(2, 1, 1, length)) < 0.2, -1e4, 0).astype("f4")
    weights = [rng.uniform(-0.5, 0.5, (features, features)).astype("f4") for _ in range(4)]
    mod = module([(x.shape, "float32"), (mask.shape, "float32")], _attention(length, heads, width, weights))
    compiled = Compiled(simplify(mod), runnable("host"), tmp_path).load()
    got = compiled.run([x, mask])[0]
    if length > 1:  # else heads and positions need no transposing, and reshapes do it
        assert sorted(set(compiled.families)) == ["contraction", "conv2d", "rows"]
        assert len(compiled.steps) == 8  # q, k, v, scores, softmax, mix, projection with residual, norm

    q, k, v = ((x.astype("f8") @ w).reshape(2, length, heads, width) for w in weights[:3])
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(width) + mask
    mixed = np.einsum("bhqk,bkhd->bqhd", arithmetic.softmax(scores, -1), v).reshape(x.shape)
    want = mixed @ weights[3].astype("f8") + x
    want = (want - want.mean(-1, keepdims=True)) / np.sqrt(want.var(-1, keepdims=True) + 1e-5)
    close(got, want, 1e-5)
