"""The largest or smallest elements of long lines, in order, against numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.arrays import Array
from tvm import relax

from .lowered import Compiled, module, runnable
from .operators import agree, one

op = relax.op


def _times(x: Any, factor: float) -> Any:
    return op.multiply(x, relax.const(np.float32(factor)))


def _overflowed(x: Array) -> Array:
    """A product of which a third of the elements are infinite."""
    with np.errstate(over="ignore"):
        return x * np.float32(2e38)


CASES = {
    "across_lines": one(
        (3, 57, 5),
        lambda x: op.topk(op.round(x), 11, axis=1, ret_type="indices", dtype="int64"),
        lambda x: np.argsort(-np.round(x), 1, kind="stable")[:, :11],
        True,
    ),
    "few_across_lines": one(
        (3, 21, 2, 15),
        lambda x: op.topk(op.round(x), 4, axis=1, ret_type="indices", dtype="int64"),
        lambda x: np.argsort(-np.round(x), 1, kind="stable")[:, :4],
        True,
    ),
    "few_across_many_lines": one(
        (70, 13),
        lambda x: op.topk(op.round(x), 3, axis=0, ret_type="values", largest=False),
        lambda x: np.sort(np.round(x), 0)[:3],
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
    "many_infinite": one(
        (2, 900),
        lambda x: op.topk(_times(x, 2e38), 300, ret_type="indices", largest=False, dtype="int64"),
        lambda x: np.argsort(_overflowed(x), 1, kind="stable")[:, :300],
        True,
    ),
    "fewer_than_the_infinite": one(
        (2, 900),
        lambda x: op.topk(_times(x, 2e38), 100, ret_type="indices", dtype="int64"),
        lambda x: np.argsort(-_overflowed(x), 1, kind="stable")[:, :100],
        True,
    ),
    "zeros_of_both_signs": one(
        (2, 500),
        lambda x: op.topk(_times(x, 0.0), 41, ret_type="indices", dtype="int64"),
        lambda x: np.tile(np.arange(41), (2, 1)),
        True,
    ),
    "few_of_a_long_line": one(
        (3, 1, 1000),
        lambda x: op.topk(x, 2, ret_type="indices", dtype="int64", largest=False),
        lambda x: np.argsort(x, 2, kind="stable")[:, :, :2],
        True,
    ),
    "all_of_a_line": one(
        (2, 70),
        lambda x: op.topk(op.round(x), -1, ret_type="indices", dtype="int64"),
        lambda x: np.argsort(-np.round(x), 1, kind="stable"),
        True,
    ),
    "integers": one(
        (2, 400),
        lambda x: op.topk(x, 33, ret_type="indices", dtype="int64", largest=False),
        lambda x: np.argsort(x, 1, kind="stable")[:, :33],
        True,
        "int32",
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
    mod = module([(x.shape, "float32")], lambda x: op.topk(x, 40, ret_type="both"))
    values, places = Compiled(mod, runnable("x86_64"), tmp_path).load().run([x])
    assert ((places >= 0) & (places < 190)).all()
    assert (np.isnan(values) | (values == 1)).all()
    mod = module([((190, 9), "float32")], lambda x: op.topk(x, 4, axis=0, ret_type="both"))
    values, places = Compiled(mod, runnable("x86_64"), tmp_path / "across").load().run([np.tile(x[1:].T, 9)])
    assert ((places >= 0) & (places < 190)).all() and np.isnan(values).all()
