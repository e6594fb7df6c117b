"""Slices on GPUs that a product or sum reads in place, slices that stay functions, and the values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from kiln.graph.bindings import operator
from kiln.lower.pipeline import fused
from kiln.precision.evaluate import Evaluator
from relaxed import const, module
from tvm import relax

Array = npt.NDArray[Any]
R = np.random.default_rng(3)
X = R.standard_normal((6, 64), np.float32)
BY_COLUMNS, BY_HEADS = R.standard_normal((16, 5), np.float32), R.standard_normal((8, 5), np.float32)


def _cut(x: Any, axis: int, begin: int, end: int, step: int = 1) -> Any:
    return relax.op.strided_slice(x, [axis], [begin], [end], [step])


def _heads(begin: int) -> Callable[[Any], Any]:
    """Columns from `begin` on as three heads, each multiplied by BY_HEADS."""
    return lambda x: relax.op.matmul(
        relax.op.reshape(_cut(x, 1, begin, begin + 24), [6, 3, 8]), const(BY_HEADS)
    )


def _of_heads(begin: int) -> Callable[[Array], Array]:
    return lambda x: x[:, begin : begin + 24].reshape(6, 3, 8) @ BY_HEADS


# name → the reader of a slice, the same by NumPy, and whether it reads in place
CASES: dict[str, tuple[Callable[[Any], Any], Callable[[Array], Array], bool]] = {
    "rows": (lambda x: relax.op.sum(_cut(x, 0, 2, 5), [0]), lambda x: x[2:5].sum(0), True),
    "columns": (
        lambda x: relax.op.matmul(_cut(x, 1, 32, 48), const(BY_COLUMNS)),
        lambda x: x[:, 32:48] @ BY_COLUMNS,
        True,
    ),
    "columns that 16 bytes do not begin with": (
        lambda x: relax.op.matmul(_cut(x, 1, 33, 49), const(BY_COLUMNS)),
        lambda x: x[:, 33:49] @ BY_COLUMNS,
        False,
    ),
    "every other row": (lambda x: relax.op.sum(_cut(x, 0, 0, 6, 2), [0]), lambda x: x[::2].sum(0), False),
    "heads": (_heads(16), _of_heads(16), True),
    "heads that begin within another": (_heads(20), _of_heads(20), False),
    "a slice that is returned": (lambda x: _cut(x, 0, 2, 5), lambda x: x[2:5], False),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CASES))
def test_slices(name: str) -> None:
    reader, reference, in_place = CASES[name]
    # A sum before the slice: what TVM fuses with the slice is no function of its own.
    mod, params = fused(module([((6, 64, 2), "float32")], lambda x: reader(relax.op.sum(x, [2]))))
    calls = [b.value for block in mod["main"].body.blocks for b in block.bindings]
    names = [call.args[0].name_hint for call in calls if operator(call) == "relax.call_tir"]
    assert any("slice" in one for one in names) != in_place
    (got,) = Evaluator(mod, params).run([np.stack([X, X], 2)], {})
    np.testing.assert_allclose(got, reference(2 * X), rtol=1e-5, atol=1e-5)
