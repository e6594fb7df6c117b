"""Tensors without elements: what is computed from them needs no operator, or is refused by its name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kiln.config.dims import Dim
from kiln.errors import KilnError
from kiln.graph.empties import is_empty, without_empties
from relaxed import calls, const, module, operators, run_by_tvm
from tvm import relax

op = relax.op
EMPTY, ROWS = ((2, 0, 3), "float32"), ((2, 4, 3), "float32")
X = np.arange(24, dtype="float32").reshape(2, 4, 3)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (lambda empty, x: op.concat([empty, x], 1), X),
        (lambda empty, x: op.concat([x, empty, op.nn.relu(x)], 1), np.concatenate([X, X], 1)),
        (lambda empty, x: op.add(op.sum(empty, 1, keepdims=True), x), X),
        (lambda empty, x: op.multiply(op.prod(empty, 1, keepdims=True), x), X),
        (
            lambda empty, x: op.matmul(op.permute_dims(op.nn.relu(empty), [0, 2, 1]), empty),
            np.zeros((2, 3, 3)),
        ),
        (lambda empty, x: op.nn.pad(empty, [0, 0, 1, 1, 0, 0], "constant", 2.0), np.full((2, 2, 3), 2)),
        (lambda empty, x: op.add(op.sum(op.topk(empty, 3, 2)[0], 1, keepdims=True), x), X),
        (lambda empty, x: op.sum(op.concat([op.exp(empty), op.negative(empty)], 1)), np.zeros(())),
    ],
)
def test_what_is_computed_from_nothing(body: Any, expected: Any) -> None:
    mod = without_empties(module([EMPTY, ROWS], body))
    assert not any(is_empty(argument) for call in calls(mod) for argument in call.args)
    (got,) = run_by_tvm(mod, [np.zeros((2, 0, 3), "float32"), X])
    np.testing.assert_array_equal(got, np.asarray(expected, "float32"))


def test_empty_results_are_not_computed() -> None:
    mod = without_empties(module([EMPTY], lambda empty: op.nn.relu(op.add(empty, const(1.0)))))
    assert set(operators(mod)) == {"zeros"}


@pytest.mark.parametrize("name", ["max", "mean"])
def test_operators_without_a_value_are_refused(name: str) -> None:
    with pytest.raises(KilnError, match=f"operator '{name}' has no value for a tensor without elements"):
        without_empties(module([EMPTY], lambda empty: getattr(op, name)(empty, 1)))


def test_other_modules_are_handed_on() -> None:
    mod = module([ROWS], op.nn.relu)
    assert without_empties(mod) is mod


def test_dimensions_may_be_empty() -> None:
    dim = Dim.model_validate({"min": 0, "max": 8, "buckets": [0, {"range": [0, 4]}]})
    assert dim.min == 0 and dim.buckets[0].exact == 0
    with pytest.raises(ValueError, match="greater than or equal to 0"):
        Dim.model_validate({"min": -1, "max": 8})
