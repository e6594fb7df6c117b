"""Functions that read values twice become loops that compute each value once."""

from __future__ import annotations

import pytest
import tvm
from kiln.callbacks import structural_walk
from kiln.frontend.tflite.gate_quotients import each
from kiln.lower.shared_elements import shared_elements
from tvm import s_tir, te, tirx


def _doubled(shape: tuple[int, ...], result: tuple[int, ...], shift: int = 0) -> tirx.PrimFunc:
    """Ten nests of `shape`, each read twice by the next, and one of `result` that reads the last of them."""
    x = te.placeholder(shape, "float32", "x")
    y = te.placeholder(result, "float32", "y")
    value = x
    for _ in range(10):
        value = each(lambda v: v * v, value, name="squared")

    def last(*i: tirx.Var) -> tvm.ir.Expr:
        at = [0 if size == 1 else index for index, size in zip(i, shape, strict=True)]
        other = [*at[:-1], (at[-1] + shift) % shape[-1]] if shift else at
        return (value(*at) + value(*other)) * y(*i)

    return te.create_prim_func([x, y, te.compute(result, last, name="last")])


@pytest.mark.parametrize(
    ("shape", "result", "shift", "is_loop"),
    [
        ((3, 4), (3, 4), 0, True),
        ((3, 1), (3, 4), 0, True),
        ((1, 1), (3, 4), 0, True),
        ((3, 4), (3, 4), 1, False),
        ((), (), 0, True),
    ],
)
def test_values_of_operands_that_are_broadcast(
    shape: tuple[int, ...], result: tuple[int, ...], shift: int, is_loop: bool
) -> None:
    func = _doubled(shape, result, shift)
    made = shared_elements(tvm.IRModule({"f": func}))["f"]
    blocks: list[str] = []
    structural_walk(made.body, [(s_tir.SBlock, lambda block: blocks.append(block.name_hint))])
    assert (len(blocks) == 2) == is_loop
