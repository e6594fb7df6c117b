"""Takes are fused with the operators that read them, and with no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from kiln.config import load_target
from kiln.lower.pipeline import Lowering, lower
from relaxed import const, module
from tvm import relax

op = relax.op


def taken(x: Any, shift: int, axis: int = 0) -> Any:
    rows = relax.const(np.array([(3 * row + shift) % 40 for row in range(30)], "int64"))
    return relax.BlockBuilder.current().emit(op.take(x, rows, axis, mode="clip"))


def interpolated(x: Any, axis: int = 0) -> Any:
    builder = relax.BlockBuilder.current()
    halves = [builder.emit(op.multiply(taken(x, shift, axis), const(0.5))) for shift in (0, 1)]
    return builder.emit(op.add(*halves))


def emitted(value: Any) -> Any:
    return relax.BlockBuilder.current().emit(value)


CASES: dict[str, tuple[Callable[[Any], Any], int]] = {
    "two rows and their mean": (interpolated, 1),
    "a take of a take": (lambda x: taken(taken(x, 1), 2, 1), 1),
    "computed elements are not computed again": (lambda x: interpolated(emitted(op.exp(x))), 4),
    "nor are sums": (lambda x: interpolated(interpolated(x), 1), 4),
    "a transpose reads a take": (lambda x: op.permute_dims(taken(x, 0), [1, 0]), 2),
}


@pytest.mark.parametrize("case", CASES)
def test_steps(case: str) -> None:
    body, steps = CASES[case]
    mod = relax.transform.Normalize()(module([((40, 40), "float32")], body))
    assert len(lower(mod, Lowering("m", load_target("aarch64"), "none")).steps) == steps
