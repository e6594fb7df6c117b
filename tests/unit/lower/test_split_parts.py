"""Parts of splits as slices, which fusion takes into the kernels that read them."""

from __future__ import annotations

from typing import Any

import numpy as np
from kiln.config import load_target
from kiln.lower.pipeline import Lowering, lower
from relaxed import const, module
from tvm import relax

op = relax.op


def labels(*shapes: tuple[int, ...], body: Any) -> list[str]:
    """The labels of the steps of `body`."""
    target = load_target("aarch64")
    mod = module([([*shape], "float32") for shape in shapes], body)
    steps = lower(mod, Lowering("m", target.for_variant(target.base), "none")).steps
    return [step.label for step in steps]


def test_gates_of_a_cell_are_read_in_place() -> None:
    """Four parts with two readers: no step copies one."""
    weights = const(np.ones((8, 64)))

    def body(x: Any, state: Any) -> Any:
        parts = op.split(op.tanh(op.matmul(x, weights)), 4, axis=1)
        gates = [op.sigmoid(relax.TupleGetItem(parts, index)) for index in range(4)]
        state = op.add(op.multiply(gates[0], state), op.multiply(gates[1], gates[2]))
        return relax.Tuple([op.multiply(gates[3], op.tanh(state)), state])

    found = labels((1, 8), (1, 16), body=body)
    assert len(found) == 3 and found[0] == "matmul+tanh", found


def test_a_transpose_is_computed_with_the_split() -> None:
    """Not before it, for slices to read: it would be stored, and its parts copied."""
    weights = const(np.ones((4, 4)))

    def body(x: Any) -> Any:
        parts = op.split(op.permute_dims(x, [0, 2, 1]), 2, axis=2)
        return relax.Tuple([op.matmul(relax.TupleGetItem(parts, index), weights) for index in range(2)])

    assert labels((1, 8, 6), body=body) == ["permute_dims+split"] * 2 + ["matmul"] * 2
