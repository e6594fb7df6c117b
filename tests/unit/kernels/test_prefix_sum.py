"""Prefix sums of dynamic sizes: which loops they become."""

from __future__ import annotations

from typing import Any

from kiln.callbacks import structural_walk
from kiln.kernels.operators.legalize import RULES
from kiln.opinfo import attach
from relaxed import module
from tvm import relax, tirx


def loops_of(axis: int) -> Any:
    rows = tirx.Var("n", "int64")
    mod = module([((3, rows, 64), "float32")], lambda x: relax.op.cumsum(x, axis))
    mod = attach.legalize_with_info(RULES, [])(relax.transform.Normalize()(mod))
    [func] = [func for _, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)]
    return func.body


def test_scans_along_a_dynamic_axis_advance_row_by_row() -> None:
    innermost: list[Any] = []

    def visit(loop: tirx.For) -> None:
        if not isinstance(loop.body, tirx.For):
            innermost.append(loop.extent)

    structural_walk(loops_of(1), ((tirx.For, visit),))
    # A loop over the rows inside would step through memory by 64 elements.
    assert len(innermost) >= 2 and all(isinstance(size, tirx.IntImm) for size in innermost)


def test_scans_of_rows_are_vectors() -> None:
    assert "T.Shuffle" in loops_of(2).script()
