"""Reasons for which steps of a quantised model compute on floats."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from kiln.lower.schema import KernelArgument, KernelRecord, OperatorRecord
from kiln.plan.schema import MemoryArgument, PlannedBucket, PlannedStep
from kiln.report.float_steps import lines, reason

Mark = Literal["integer", "float", "between"]


def _step(
    ops: str, mark: Mark | None, reads: str = "int8", index: int = 0
) -> tuple[PlannedStep, KernelRecord]:
    """A step of the operators `ops` that reads a tensor and a parameter of float32."""
    dtypes = {reads: "arena", "float32": "params"} if reads != "float32" else {reads: "arena"}
    arguments = [
        KernelArgument.model_construct(dtype=dtype, const=True)  # type: ignore[call-arg]
        for dtype in (*dtypes, "float32")
    ]
    arguments[-1] = KernelArgument.model_construct(dtype="float32", const=False)
    places: list[Any] = [MemoryArgument.model_construct(at=at) for at in (*dtypes.values(), "arena")]
    kernel = KernelRecord.model_construct(
        symbol=f"k{index}", args=arguments,
        ops=[OperatorRecord.model_construct(name=f"relax.{name}") for name in ops.split()],
    )  # fmt: skip
    return PlannedStep.model_construct(kernel=f"k{index}", args=places, arithmetic=mark), kernel


@pytest.mark.parametrize(
    ("ops", "reads", "expected"),
    [
        ("nn.layer_norm quantize", "float32", "normalisation need more than 8 bits"),
        ("dequantize nn.softmax quantize", "int8", "exponentials need more than 8 bits"),
        ("reshape dequantize", "int8", "convert between floats and integers"),
        ("nn.conv2d add", "float32", "operands of the product are not quantised"),
        ("einsum multiply subtract", "int8", "sums of integers, whose result is read as floats"),
        ("dequantize sin quantize", "int8", "no quantise and dequantise enclose them"),
    ],
)
def test_each_reason(ops: str, reads: str, expected: str) -> None:
    assert expected in reason(*_step(ops, "between", reads))
    assert reason(*_step(ops, "integer", reads)) == reason(*_step(ops, None, reads)) == ""


def test_steps_are_listed_by_reason() -> None:
    made = [
        _step("quantize", "float", "float32", 0),
        _step("matmul quantize", "integer", "int8", 1),
        _step("nn.softmax", "between", "int8", 2),
        _step("dequantize", "float", "int8", 3),
    ]
    kernels = {kernel.symbol: kernel for _, kernel in made}
    bucket = PlannedBucket.model_construct(steps=[step for step, _ in made])
    text = lines(bucket, kernels)
    assert text[0] == "1 of 4 steps compute on integers"
    assert text[1].startswith("floats in steps 0, 3: ") and text[2].startswith("floats in step 2: ")
    plain = PlannedBucket.model_construct(steps=[_step("matmul", None, "float32")[0]])
    assert lines(plain, kernels) == []
