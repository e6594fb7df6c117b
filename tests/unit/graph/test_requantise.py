"""Requantise: one multiplication between an integer sum and its levels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kiln.graph.integer import integer_arithmetic
from kiln.graph.requantise import requantise
from relaxed import calls, const, module, operators, run_by_tvm
from tvm import relax

op = relax.op
RNG = np.random.default_rng(3)
WEIGHTS = RNG.integers(-127, 128, (24, 6)).astype("int8")
SCALE = RNG.uniform(0.001, 0.002, 6).astype("f4")
LEVEL = 0.5
WHOLE = (RNG.integers(-4000, 4000, 6) * (SCALE * np.float32(0.5))).astype("f4")


def _product(x: Any, bias: Any) -> Any:
    left = op.dequantize(x, const(0.5), const(3, "int8"), out_dtype="float32")
    scale = const(SCALE)
    right = op.dequantize(
        const(WEIGHTS, "int8"), scale, const(np.zeros(6), "int8"), axis=1, out_dtype="float32"
    )
    product = op.matmul(left, right)
    return product if bias is None else op.add(product, const(bias))


def _levels(x: Any, zero: int, dtype: str) -> Any:
    return op.quantize(x, const(LEVEL), const(zero, dtype), out_dtype=dtype)


CASES: dict[str, Any] = {
    "plain": lambda x: _levels(_product(x, None), 3, "int8"),
    "bias": lambda x: _levels(_product(x, WHOLE), 3, "int8"),
    "bias_of_floats": lambda x: _levels(_product(x, RNG.normal(size=6)), 3, "int8"),
    "relu": lambda x: _levels(op.nn.relu(_product(x, WHOLE)), 3, "int8"),
    "relu_at_the_end": lambda x: _levels(op.nn.relu(_product(x, WHOLE)), 0, "uint8"),
    "limits": lambda x: _levels(
        op.minimum(op.maximum(_product(x, WHOLE), const(-4.0)), const(40.0)), 9, "uint8"
    ),
}
LEFT = {"plain": 0, "bias": 0, "bias_of_floats": 0, "relu": 1, "relu_at_the_end": 0, "limits": 2}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.slow
def test_one_multiplication_is_left(name: str) -> None:
    mod = integer_arithmetic(module([((5, 24), "int8")], CASES[name]))
    changed = requantise(mod)
    changed = relax.transform.DeadCodeElimination()(changed)
    x = RNG.integers(-128, 128, (5, 24)).astype("int8")
    (want,), (got,) = run_by_tvm(mod, [x]), run_by_tvm(changed, [x])
    assert len(np.unique(want)) > 5
    difference = np.abs(got.astype("i4") - want.astype("i4"))
    assert (
        difference.max() <= 1 and np.count_nonzero(difference) <= 1
    )  # a tie that float32 rounds another way
    names = operators(changed)
    assert names.count("multiply") == 1
    assert names.count("maximum") + names.count("minimum") + names.count("nn.relu") == LEFT[name]
    added = [call for call in calls(changed) if call.op.name == "relax.add"]
    assert [str(call.ty.dtype) for call in added] == ["int32"] + (
        ["float32"] if name == "bias_of_floats" else []
    )
    (quantize,) = [call for call in calls(changed) if call.op.name == "relax.quantize"]
    assert float(quantize.args[1].value.numpy()) == 1.0


def test_a_sum_that_is_read_as_floats_stays() -> None:
    def body(x: Any) -> Any:
        value = _product(x, WHOLE)
        return [_levels(value, 3, "int8"), value]

    mod = integer_arithmetic(module([((5, 24), "int8")], body))
    assert operators(requantise(mod)) == operators(mod)
