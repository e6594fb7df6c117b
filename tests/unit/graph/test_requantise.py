"""Requantise: one multiplication between an integer sum and its levels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kiln.graph.integer import integer_arithmetic
from kiln.graph.pipeline import simplify
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


def _levels_of_columns(x: Any) -> Any:
    return op.quantize(x, const(LEVEL * (1 + np.arange(6) / 8)), const(np.full(6, 9), "uint8"), 1, "uint8")


CASES: dict[str, Any] = {
    "plain": lambda x: _levels(_product(x, None), 3, "int8"),
    "bias": lambda x: _levels(_product(x, WHOLE), 3, "int8"),
    "bias_of_floats": lambda x: _levels(_product(x, RNG.normal(size=6)), 3, "int8"),
    "relu": lambda x: _levels(op.nn.relu(_product(x, WHOLE)), 3, "int8"),
    "relu_at_the_end": lambda x: _levels(op.nn.relu(_product(x, WHOLE)), 0, "uint8"),
    "limits": lambda x: _levels(
        op.minimum(op.maximum(_product(x, WHOLE), const(-4.0)), const(40.0)), 9, "uint8"
    ),
    "columns": lambda x: _levels_of_columns(_product(x, WHOLE)),
    "limits_of_columns": lambda x: _levels_of_columns(
        op.minimum(_product(x, RNG.normal(size=6)), const(40.0))
    ),
}
LEFT = {"plain": 0, "bias": 0, "bias_of_floats": 0, "relu": 1, "relu_at_the_end": 0, "limits": 2,
        "columns": 0, "limits_of_columns": 1}  # fmt: skip


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
        ["float32"] if name in ("bias_of_floats", "limits_of_columns") else []
    )
    (quantize,) = [call for call in calls(changed) if call.op.name == "relax.quantize"]
    assert float(quantize.args[1].value.numpy()) == 1.0


def test_a_sum_that_is_read_as_floats_stays() -> None:
    def body(x: Any) -> Any:
        value = _product(x, WHOLE)
        return [_levels(value, 3, "int8"), value]

    mod = integer_arithmetic(module([((5, 24), "int8")], body))
    assert operators(requantise(mod)) == operators(mod)


def test_channels_with_scales_of_their_own_stay_integers() -> None:
    """A convolution, levels with a scale for each channel, and a depthwise convolution that reads them."""
    kernel, taps = RNG.integers(-127, 128, (6, 3, 3, 3)), RNG.integers(-127, 128, (6, 1, 3, 3))
    scales, zeros = const(RNG.uniform(0.05, 0.1, 6)), const(np.zeros(6), "uint8")
    own = const(RNG.uniform(0.001, 0.002, 6)), const(np.zeros(6), "int8")

    def layer(image: Any, weights: Any, groups: int) -> Any:
        real = op.dequantize(const(weights, "int8"), *own, axis=0, out_dtype="float32")
        return op.nn.relu(op.nn.conv2d(image, real, padding=1, groups=groups))

    def body(x: Any) -> Any:
        image = op.dequantize(x, const(0.1), const(3, "int8"), out_dtype="float32")
        levels = op.quantize(layer(image, kernel, 1), scales, zeros, axis=1, out_dtype="uint8")
        inner = op.dequantize(levels, scales, zeros, axis=1, out_dtype="float32")
        return _levels(layer(inner, taps, 6), 0, "uint8")

    mod = module([((1, 3, 6, 7), "int8")], body)
    changed = simplify(mod)
    x = RNG.integers(-128, 128, (1, 3, 6, 7)).astype("int8")
    (want,), (got,) = run_by_tvm(mod, [x]), run_by_tvm(changed, [x])
    assert len(np.unique(want)) > 5 and np.abs(got.astype("i4") - want.astype("i4")).max() <= 1
    convolutions = [call for call in calls(changed) if call.op.name == "relax.nn.conv2d"]
    assert [str(call.ty.dtype) for call in convolutions] == ["int32"] * 2
    names = operators(changed)
    assert names.count("permute_dims") == 2 and "dequantize" not in names
