"""Transposes in square blocks, and nests whose axes are merged, against numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kiln.kernels.cpu import transposed
from tvm import relax

from .lowered import Compiled, module, runnable
from .operators import Case, agree, one

op = relax.op

CASES = {
    "blocks": one((33, 47), lambda x: op.permute_dims(x, [1, 0]), lambda x: x.T.copy(), True),
    "images": one(
        (2, 19, 7, 13), lambda x: op.permute_dims(x, [0, 2, 3, 1]), lambda x: x.transpose(0, 2, 3, 1), True
    ),
    "bytes": one(
        (3, 21, 35), lambda x: op.permute_dims(x, [2, 0, 1]), lambda x: x.transpose(2, 0, 1), True, "int8"
    ),
    "large_integers": one(
        (17, 2, 19), lambda x: op.permute_dims(x, [2, 1, 0]), lambda x: x.transpose(2, 1, 0), True, "int64"
    ),
    # A transposed operand, and one that is read at the index that is written, and one along each axis.
    "sum": Case(
        ((2, 40, 24), (2, 24, 40), (40,), (24, 1)),
        lambda x, y, a, b: op.add(op.add(op.nn.relu(op.permute_dims(x, [0, 2, 1])), y), op.multiply(a, b)),
        lambda x, y, a, b: np.maximum(x.transpose(0, 2, 1), 0) + y + a * b,
    ),
    "product_of_whole_blocks": Case(
        ((2, 32, 16), (2, 16, 32)),
        lambda x, y: op.multiply(op.nn.relu(op.permute_dims(x, [0, 2, 1])), y),
        lambda x, y: np.maximum(x.transpose(0, 2, 1), 0) * y,
    ),
    "two_turned": Case(
        ((24, 17), (24, 17)),
        lambda x, y: op.subtract(op.permute_dims(x, [1, 0]), op.permute_dims(y, [1, 0])),
        lambda x, y: (x - y).T,
    ),
    "short_rows": one(
        (9, 4, 14, 3), lambda x: op.permute_dims(x, [1, 0, 2, 3]), lambda x: x.transpose(1, 0, 2, 3), True
    ),
    "broadcast_over_short_rows": Case(
        ((1, 24, 13, 13), (24, 1, 1), (1, 1, 13, 13)),
        lambda x, a, b: op.add(op.multiply(x, a), b),
        lambda x, a, b: x * a + b,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_blocks_and_merged_axes(name: str, tmp_path: Path) -> None:
    agree(CASES[name], tmp_path)


def test_the_cases_reach_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = []
    make = transposed.make
    monkeypatch.setattr(transposed, "make", lambda *given: kernels.append(given) or make(*given))
    for name in ("blocks", "images", "bytes", "sum", "product_of_whole_blocks"):
        case = CASES[name]
        Compiled(
            module([(shape, case.dtype) for shape in case.shapes], case.make), runnable("x86_64"), tmp_path
        )
    assert len(kernels) == 5
