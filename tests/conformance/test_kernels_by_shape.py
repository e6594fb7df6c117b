"""Forms of kernels that sizes choose, against TVM's own kernels: few rows, small groups, many channels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from relaxed import const, module, run_by_tvm
from tvm import relax

from .lowered import Compiled, close, runnable

op = relax.op


def _weights(*shape: int) -> Any:
    return const(np.random.default_rng(1).standard_normal(shape).astype("float32"))


def _depthwise(channels: int, times: int, stride: int) -> Any:
    def make(x: Any) -> Any:
        kernel = _weights(3, 3, 1, channels * times)
        return op.nn.conv2d(
            x, kernel, strides=stride, padding=1, groups=channels, data_layout="NHWC", kernel_layout="HWIO"
        )

    return make


def _resized(method: str, size: tuple[int, int]) -> Any:
    def make(x: Any) -> Any:
        image = op.permute_dims(x, [0, 2, 3, 1])
        resized = op.image.resize2d(image, size, roi=[0.0] * 4, layout="NHWC", method=method)
        return op.permute_dims(resized, [0, 3, 1, 2])

    return make


# name: (shapes of the inputs, the function, families of the kernels)
CASES: dict[str, tuple[list[tuple[int, ...]], Any, list[str]]] = {
    "two_results_a_channel": (
        [(1, 7, 9, 19)], _depthwise(19, 2, 1), ["loops", "loops", "border", "depthwise"],
    ),
    "three_results_a_channel": ([(2, 6, 5, 5)], _depthwise(5, 3, 2), ["loops", "border", "conv2d"]),
    "resized": ([(1, 19, 7, 5)], _resized("linear", (11, 13)), ["loops"] * 3),
    "resized_of_few_channels": ([(1, 3, 7, 5)], _resized("linear", (11, 13)), ["loops"]),
    "resized_to_the_nearest": ([(2, 8, 5, 6)], _resized("nearest_neighbor", (10, 12)), ["loops"] * 3),
    "one_row_by_long_columns": (
        [(1, 131), (37, 131)], lambda x, y: op.einsum([x, y], "ik,jk->ij"), ["loops"],
    ),
    "rows_by_one_long_vector": ([(5, 37, 66), (5, 66, 1)], op.matmul, ["loops"]),
    "the_largest_of_each_line": (
        [(5, 131)], lambda x: op.topk(x, 1, 1, "values", largest=False), ["loops"],
    ),
    "many_rows_by_seven_columns": ([(2, 29, 11), (2, 11, 7)], op.matmul, ["contraction"]),
    "two_rows_by_long_columns": (
        [(2, 131), (37, 131)], lambda x, y: op.einsum([x, y], "ik,jk->ij"), ["contraction"],
    ),
    "rows_in_columns_by_long_columns": (
        [(3, 131, 7), (3, 38, 131)],
        lambda x, y: op.nn.relu(op.einsum([x, y], "bki,bjk->bij")), ["contraction"],
    ),
    "long_rows_by_three_columns": ([(37, 131), (131, 3)], op.matmul, ["contraction"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_sizes_choose_the_form(name: str, tmp_path: Path) -> None:
    shapes, make, families = CASES[name]
    inputs = [np.random.default_rng(2).standard_normal(shape).astype("float32") for shape in shapes]
    mod = module([(shape, "float32") for shape in shapes], make)
    compiled = Compiled(mod, runnable("x86_64"), tmp_path)
    assert sorted(compiled.families) == sorted(families)
    close(compiled.load().run(inputs)[0], run_by_tvm(mod, inputs)[0], 1e-5)
