"""Grouped queries read the keys and values that they share; no copy is made for each head."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kiln.graph.pipeline import simplify
from relaxed import const, module, operators, run_by_tvm
from tvm import relax

op = relax.op
BATCH, HEADS, GROUP, WIDTH, LENGTH = 2, 6, 3, 8, 21
KEYS = (BATCH, HEADS // GROUP, LENGTH, WIDTH)


def _repeated(x: Any, lead: tuple[int, ...] = (BATCH, HEADS), group: int = GROUP) -> Any:
    """Keys or values repeated for the heads of a group, as PyTorch's exporters write repeat_kv."""
    wide = op.broadcast_to(op.expand_dims(x, 2), [*KEYS[:2], group, *KEYS[2:]])
    return op.reshape(wide, [*lead, *KEYS[2:]])


def _eager(q: Any, k: Any, v: Any) -> Any:
    scores = op.matmul(q, op.permute_dims(_repeated(k), [0, 1, 3, 2]))
    return op.matmul(op.nn.softmax(op.multiply(scores, const(0.25)), -1), _repeated(v))


def _sdpa(q: Any, k: Any, v: Any) -> Any:
    """The scale on queries and keys, and the transpose over heads and batch as one axis."""
    turned = op.permute_dims(_repeated(k, (BATCH * HEADS,)), [0, 2, 1])
    keys = op.reshape(op.multiply(turned, const(0.5)), [BATCH, HEADS, WIDTH, LENGTH])
    return op.matmul(op.nn.softmax(op.matmul(op.multiply(q, const(0.5)), keys), -1), _repeated(v))


def _masked(q: Any, k: Any, v: Any) -> Any:
    mask = const(np.where(np.arange(LENGTH) % 4 == 1, -1e4, 0).reshape(1, 1, 1, LENGTH))
    scores = op.matmul(q, op.permute_dims(_repeated(k), [0, 1, 3, 2]))
    return op.matmul(op.nn.softmax(op.add(scores, mask), -1), _repeated(v))


def _biased(q: Any, k: Any, v: Any) -> Any:
    """A bias of three axes that differs from head to head, a limit, and queries that are transposed."""
    bias = const(np.linspace(-1, 1, HEADS * LENGTH).reshape(HEADS, 1, LENGTH))
    rows = op.permute_dims(op.permute_dims(q, [0, 2, 1, 3]), [0, 2, 1, 3])
    scores = op.matmul(rows, op.permute_dims(_repeated(k), [0, 1, 3, 2]))
    scores = op.multiply(op.tanh(op.multiply(scores, const(0.2))), const(5))
    return op.matmul(op.nn.softmax(op.maximum(op.add(scores, bias), const(-0.9)), -1), _repeated(v))


def _hidden(q: Any, k: Any, v: Any) -> Any:
    """A mask of -inf, and zeros for rows without any key, as for PyTorch's function for attention."""
    keep = np.tri(1, LENGTH, 5, dtype="bool").reshape(1, 1, 1, LENGTH)
    scores = op.matmul(q, op.permute_dims(_repeated(k), [0, 1, 3, 2]))
    chances = op.nn.softmax(op.where(relax.const(keep), scores, const(-np.inf)), -1)
    return op.matmul(op.where(op.isnan(chances), const(0), chances), _repeated(v))


def _read_twice(q: Any, k: Any, v: Any) -> Any:
    scores = op.matmul(q, op.permute_dims(_repeated(k), [0, 1, 3, 2]))
    chances = op.nn.softmax(op.maximum(scores, const(-3)), -1)
    return op.add(op.matmul(chances, _repeated(v)), op.sum(chances, -1, True))


@pytest.mark.parametrize(
    ("body", "rows", "copies"),
    [
        (_eager, 1, 0), (_eager, 5, 0), (_eager, 70, 0),
        (_sdpa, 1, 0), (_sdpa, 70, 0),
        (_masked, 1, 0), (_masked, 63, 0), (_masked, 64, 0),
        (_biased, 3, 0), (_biased, 70, 0), (_hidden, 70, 0), (_read_twice, 70, 2),
    ],
)  # fmt: skip
def test_keys_and_values_are_shared(body: Any, rows: int, copies: int) -> None:
    shapes = [(BATCH, HEADS, rows, WIDTH), KEYS, KEYS]
    mod = module([(shape, "float32") for shape in shapes], body)
    changed = simplify(mod)
    assert operators(changed).count("broadcast_to") == copies
    if body is _masked and rows == 1:  # no reshape is left between the scores and their softmax
        names = operators(changed)
        assert names[names.index("einsum") :][:3] == ["einsum", "add", "nn.softmax"]
    rng = np.random.default_rng(7)
    inputs = [rng.uniform(-1, 1, shape).astype("f4") for shape in shapes]
    assert np.allclose(run_by_tvm(changed, inputs)[0], run_by_tvm(mod, inputs)[0], atol=2e-6)


def test_transposes_to_heads_and_back_are_not_made() -> None:
    """Queries, keys, values and the result are (batch, position, head, width), as dense layers have them."""

    def prompt(q: Any, k: Any, v: Any) -> Any:
        mixed = _masked(*(op.permute_dims(x, [0, 2, 1, 3]) for x in (q, k, v)))
        return op.permute_dims(mixed, [0, 2, 1, 3])

    keys = (BATCH, LENGTH, HEADS // GROUP, WIDTH)
    shapes = [(BATCH, 70, HEADS, WIDTH), keys, keys]
    mod = module([(shape, "float32") for shape in shapes], prompt)
    changed = simplify(mod)
    assert not {"permute_dims", "broadcast_to"} & set(operators(changed))
    inputs = [np.random.default_rng(7).uniform(-1, 1, shape).astype("f4") for shape in shapes]
    assert np.allclose(run_by_tvm(changed, inputs)[0], run_by_tvm(mod, inputs)[0], atol=2e-6)


def test_what_is_no_repetition_of_heads() -> None:
    """One matrix for all heads, and a repetition of the keys themselves."""

    def rows(q: Any, k: Any, v: Any) -> Any:
        many = op.broadcast_to(op.expand_dims(k, 3), [*KEYS[:3], GROUP, WIDTH])
        flat = op.reshape(many, [BATCH, HEADS // GROUP, LENGTH * GROUP, WIDTH])
        return op.matmul(q, op.permute_dims(flat, [0, 1, 3, 2]))

    shapes = [(BATCH, HEADS // GROUP, 4, WIDTH), KEYS, KEYS]
    changed = simplify(module([(shape, "float32") for shape in shapes], rows))
    assert operators(changed).count("broadcast_to") == 1
