"""Weights whose multiply-adds interrupt the processor: subnormal numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from kiln.graph.pipeline import simplify
from kiln.graph.tiny_weights import tiny_weights
from relaxed import calls, const, module
from tvm import relax

op = relax.op
RNG = np.random.default_rng(5)
TINY = np.array([1e-40, -1e-45, 1.1e-38, 0], "f4")


def _weights(*shape: int) -> Any:
    weights = RNG.normal(size=shape).astype("f4")
    weights.reshape(-1)[:4] = TINY
    return weights


def _of(call: Any) -> Any:
    return call.args[1].value.numpy()


def test_tiny_weights_of_convolutions_and_matmuls_are_zeros() -> None:
    kernel, matrix = _weights(3, 3, 4, 8), _weights(8, 16)

    def body(x: Any) -> Any:
        y = op.nn.conv2d(x, const(kernel), data_layout="NHWC", kernel_layout="HWIO")
        return op.matmul(y, const(matrix))

    mod = module([((1, 9, 9, 4), "float32")], body)
    for changed in (tiny_weights(mod), simplify(mod)):
        found = calls(changed)
        for call, before in zip(
            [c for c in found if c.op.name != "relax.reshape"], (kernel, matrix), strict=True
        ):
            after = _of(call)
            assert not after.reshape(-1)[:4].any()
            np.testing.assert_array_equal(after.reshape(-1)[4:], before.reshape(-1)[4:])


def test_other_values_stay() -> None:
    """Weights that are all small, and operands of other operators, keep every bit."""
    small = np.full((4, 4), 1e-40, "f4")
    for function in (op.matmul, op.multiply, op.add):
        operand = small if function is op.matmul else _weights(4, 4)
        mod = module([((4, 4), "float32")], lambda x, f=function, w=operand: f(x, const(w)))
        (call,) = calls(tiny_weights(mod))
        np.testing.assert_array_equal(_of(call), operand)
