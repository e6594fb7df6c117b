"""Folding of known contents of inputs: zeros through products and sums, and constants with constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from kiln.params import store
from kiln.specialize.conditions import input_is
from kiln.specialize.dispatch import leaves
from kiln.specialize.special_case import special_cases
from relaxed import Array, const, operators, run_by_tvm
from tvm import relax, tirx

op = relax.op
WEIGHT = np.arange(12, dtype="float32").reshape(3, 4) + 1
KERNEL = np.ones((3, 3, 3, 4), "float32")


def special(
    content: Any, body: Any, shape: tuple[Any, ...] = (2, 3), dtype: str = "float32"
) -> tuple[list[str], tvm.IRModule]:
    """The operators of main(x, mask) for a mask of this content, and the module of that case alone."""
    x, mask = (relax.Var(name, relax.TensorType(list(shape), dtype)) for name in ("x", "mask"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, mask], attrs={"num_input": 2}):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(body(x, mask)))
        builder.emit_func_output(result)
    made = leaves(special_cases(builder.get(), [input_is("mask", content)]))[0].module
    return operators(made), made


IMAGE = (1, 5, 5, 3)


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        (lambda x, mask: op.matmul(mask, const(WEIGHT)), (2, 3)),
        (lambda x, mask: op.matmul(mask, op.permute_dims(x)), (2, 3)),
        (lambda x, mask: op.matmul(x, op.permute_dims(mask)), (2, 3)),
        (lambda x, mask: op.nn.conv2d(mask, const(KERNEL), data_layout="NHWC", kernel_layout="HWIO"), IMAGE),
        (lambda x, mask: op.nn.conv2d(op.nn.pad(mask, [0, 0, 1, 1, 1, 1, 0, 0]), const(KERNEL),
                                      data_layout="NHWC", kernel_layout="HWIO"), IMAGE),
        (lambda x, mask: op.nn.avg_pool2d(mask, [2, 2], layout="NHWC"), IMAGE),
        (lambda x, mask: op.sum(op.multiply(x, mask), 1), (2, 3)),
        (lambda x, mask: op.einsum([x, mask], "ij,kj->ik"), (2, 3)),
        (lambda x, mask: op.nn.relu(op.cumsum(mask, 1)), (2, 3)),
        (lambda x, mask: op.multiply(op.tanh(mask), op.exp(x)), (2, 3)),
        (lambda x, mask: op.take(mask, const([1, 0], "int64"), 0), (2, 3)),
        (lambda x, mask: op.multiply(mask, const(WEIGHT[0, :3])), (tirx.Var("n", "int64"), 3)),
    ],
)  # fmt: skip
def test_zeros_are_followed(body: Any, shape: tuple[Any, ...]) -> None:
    found, _ = special("zeros", body, shape)
    assert found == ["full"]


def test_a_bias_behind_zeros_is_left() -> None:
    bias = const(WEIGHT[0])
    found, made = special("zeros", lambda x, mask: op.add(op.matmul(mask, const(WEIGHT)), bias))
    assert "matmul" not in found
    zeros: list[Array] = [np.zeros((2, 3), "float32")] * 2
    np.testing.assert_array_equal(run_by_tvm(made, zeros)[0], np.tile(WEIGHT[0], (2, 1)))


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_weights_that_are_not_finite_keep_their_product(value: float) -> None:
    weight = WEIGHT.copy()
    weight[1, 2] = value
    for body in (
        lambda x, mask: op.matmul(mask, const(weight)),
        lambda x, mask: op.multiply(mask, const(weight[:2, :3])),
    ):
        found, _ = special("zeros", body)
        assert found != ["full"]


def test_a_weight_times_a_known_tensor_is_computed_now() -> None:
    mask = np.array([[1, 0, 2], [0, 3, 0]], "float32")

    def body(x: Any, given: Any) -> Any:
        product = op.matmul(given, const(WEIGHT[:, :3]))
        return op.add(x, op.multiply(product, const(WEIGHT[:2, :3])))

    found, made = special(mask, body)
    assert found == ["add"]
    _, tensors = store.split(made)
    (stored,) = tensors.values()
    np.testing.assert_allclose(stored, mask @ WEIGHT[:, :3] * WEIGHT[:2, :3])


def test_a_case_that_saves_nothing_is_dropped() -> None:
    x, mask = (relax.Var(name, relax.TensorType([2, 3], "float32")) for name in ("x", "mask"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, mask], attrs={"num_input": 2}):
        with builder.dataflow():
            result = builder.emit_output(op.add(x, mask))
        builder.emit_func_output(result)
    dropped: list[int] = []
    tensor = np.arange(6, dtype="float32").reshape(2, 3)
    conditions = [input_is("mask", tensor), input_is("mask", "zeros")]
    made = special_cases(builder.get(), conditions, dropped=dropped.append)
    assert dropped == [0] and [case.name for case in leaves(made)] == ["mask_zeros", ""]
