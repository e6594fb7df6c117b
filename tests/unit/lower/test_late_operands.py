"""Products and convolutions are computed by their family, wherever the graph has their other operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from kiln.config import load_target
from kiln.lower.late_operands import _GraphNode, _late_bindings
from kiln.lower.pipeline import Lowering, lower
from relaxed import const, module
from tvm import relax

op = relax.op
NUMBERS = np.random.default_rng(1)


def product(x: Any) -> Any:
    return op.matmul(x, const(NUMBERS.random((64, 64))))


def convolution(x: Any) -> Any:
    kernel = const(NUMBERS.random((3, 3, 64, 64)))
    return op.nn.conv2d(x, kernel, padding=1, data_layout="NHWC", kernel_layout="HWIO")


def several(y: Any) -> Any:
    """A tensor that two operators of the group read."""
    total = op.add(y, const(1.0))
    return op.multiply(total, op.sigmoid(total))


def moved(y: Any) -> Any:
    return op.tanh(op.permute_dims(y, [0, 1, 3, 2]))


CASES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "a product": (product, op.tanh),
    "a convolution": (convolution, op.sigmoid),
    "a chain": (product, lambda y: op.exp(op.negative(op.abs(y)))),
    "an intermediate result read twice": (convolution, several),
    "a transposed operand": (product, moved),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("operator", [op.add, op.multiply])
def test_an_operand_before_the_anchor(case: str, operator: Any) -> None:
    anchor, other = CASES[case]

    def body(x: Any, y: Any) -> Any:
        builder = relax.BlockBuilder.current()
        before = builder.emit(other(y))
        return operator(before, builder.emit(anchor(x)))

    mod = module([((1, 64, 64, 64), "float32"), ((1, 64, 64, 64), "float32")], body)
    steps = lower(relax.transform.Normalize()(mod), Lowering("m", load_target("aarch64"), "none"))
    families = {kernel.family for kernel in steps.kernels if kernel.flops > 10**7}
    assert families in ({"conv2d"}, {"winograd"})


@pytest.mark.parametrize("anchor", [product, convolution])
def test_a_part_of_a_product_before_the_anchor(anchor: Any) -> None:
    """A gate and what it multiplies are parts of one product: to TVM, the first part is elementwise."""

    def body(x: Any) -> Any:
        builder = relax.BlockBuilder.current()
        both = builder.emit(op.matmul(x, const(NUMBERS.random((64, 128)))))
        gate = builder.emit(op.strided_slice(both, [3], [0], [64]))
        data = builder.emit(op.strided_slice(both, [3], [64], [128]))
        return op.multiply(gate, builder.emit(anchor(builder.emit(op.nn.relu(data)))))

    mod = module([((1, 64, 64, 64), "float32")], body)
    steps = lower(relax.transform.Normalize()(mod), Lowering("m", load_target("aarch64"), "none"))
    families = [kernel.family for kernel in steps.kernels if kernel.flops > 10**7]
    assert len(families) >= 2 and set(families) <= {"conv2d", "winograd"}


def test_nothing_moves_into_a_loop() -> None:
    """An operand from before a loop stays there; one of the same iteration moves after the product."""
    before, inside = _GraphNode(0, [], 0), _GraphNode(0, [], 1)
    anchor, reader = _GraphNode(4, [], 1), _GraphNode(1, [0, 1, 2], 1)
    assert _late_bindings([before, inside, anchor, reader]) == {1}


def test_an_operand_of_one_behind_the_anchor_moves() -> None:
    """The reader of an early operand may already be after the product."""
    early, anchor = _GraphNode(2, [], 0), _GraphNode(4, [], 0)
    other, reader = _GraphNode(0, [0], 0), _GraphNode(1, [1, 2], 0)
    assert _late_bindings([early, anchor, other, reader]) == {0}


def test_an_operand_with_an_anchor_of_its_own_stays() -> None:
    first, after, second, reader = (
        _GraphNode(pattern, operands, 0) for pattern, operands in ((4, []), (0, [0]), (4, []), (1, [1, 2]))
    )
    assert not _late_bindings([first, after, second, reader])


def test_an_operand_computed_from_a_reduction_moves() -> None:
    """As a zero point that follows from the extremes of a tensor, though not before the reader of another."""
    maximum, point, anchor, reader = (
        _GraphNode(pattern, operands, 0) for pattern, operands in ((3, []), (0, [0]), (4, []), (1, [1, 2]))
    )
    assert _late_bindings([maximum, point, anchor, reader]) == {1}


def test_a_dynamically_quantised_product_with_zero_points_on_both_sides() -> None:
    """Its group reads a scalar and sums of rows that are computed from the data."""

    def body(x: Any) -> Any:
        builder = relax.BlockBuilder.current()
        point = builder.emit(op.astype(op.max(x), "int32"))
        whole = op.sum(op.astype(x, "int32"), -1, keepdims=True)
        rows = op.subtract(whole, op.multiply(point, relax.const(64, "int32")))
        weights = relax.const(NUMBERS.integers(-128, 128, (64, 1024), "int8"))
        sums = relax.const(NUMBERS.integers(-99, 99, 1024, "int32"))
        total = op.matmul(x, weights, out_dtype="int32")
        total = op.subtract(total, op.multiply(rows, relax.const(-9, "int32")))
        return op.subtract(total, op.multiply(point, sums))

    mod = module([((200, 64), "uint8")], body)
    steps = lower(relax.transform.Normalize()(mod), Lowering("m", load_target("x86_64"), "none"))
    assert {kernel.family for kernel in steps.kernels if kernel.flops > 10**7} == {"conv2d"}
