"""The largest or smallest elements of long lines, in order, against numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tvm import relax

from .lowered import Compiled, module, runnable
from .operators import agree, one

op = relax.op

CASES = {
    "across_lines": one(
        (3, 57, 5),
        lambda x: op.topk(op.round(x), 11, axis=1, ret_type="indices", dtype="int64"),
        lambda x: np.argsort(-np.round(x), 1, kind="stable")[:, :11],
        True,
    ),
    "by_blocks": one(
        (2, 403), lambda x: op.topk(x, 3, ret_type="values", largest=False), lambda x: np.sort(x)[:, :3], True
    ),
    "one_of_many": one(
        (300,),
        lambda x: op.topk(x, 1, ret_type="indices"),
        lambda x: x.argmax(keepdims=True).astype("i4"),
        True,
    ),
    "half_the_line": one(
        (2, 333),
        lambda x: op.topk(op.round(x), 167, ret_type="indices", largest=False, dtype="int64"),
        lambda x: np.argsort(np.round(x), kind="stable")[:, :167],
        True,
    ),
    "bytes": one(
        (2, 700),
        lambda x: op.topk(x, 9, ret_type="indices", dtype="int64"),
        lambda x: np.argsort(-x.astype("i4"), kind="stable")[:, :9],
        True,
        "int8",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_best_of_a_line(name: str, tmp_path: Path) -> None:
    agree(CASES[name], tmp_path)


def test_positions_in_lines_of_no_numbers_lie_in_the_tensor(tmp_path: Path) -> None:
    x = np.full((2, 190), np.nan, "f4")
    x[0, 3:9] = 1
    made = module([(x.shape, "float32")], lambda x: op.topk(x, 40, ret_type="both"))
    values, places = Compiled(made, runnable("x86_64"), tmp_path).load().run([x])
    assert ((places >= 0) & (places < 190)).all()
    assert (np.isnan(values) | (values == 1)).all()
