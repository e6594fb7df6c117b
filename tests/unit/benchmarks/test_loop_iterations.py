"""How often steps run: in loops, in loops within loops, and in loops whose rounds no plan knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kiln.plan.schema import PlannedStep

from benchmarks.loop_iterations import iterations_of


def _step(label: str, sizes: Sequence[int] = (), **more: Any) -> dict[str, Any]:
    args = [{"at": "arena", "offset": 0, "bytes": size} for size in sizes]
    return {"kernel": "k", "label": label, "args": args, **more}


def _mark(number: int, ends: bool) -> dict[str, Any]:
    return _step("loop", loop={"number": number, "ends": ends})


def test_rounds_are_those_of_all_loops_around_a_step() -> None:
    inner = [_mark(2, False), _step("matmul"), _step("loop_row", [8, 8, 80]), _mark(2, True)]
    outer = [_mark(1, False), *inner, _step("loop_row", [4, 8, 12]), _mark(1, True)]
    unknown = [_mark(3, False), _step("less"), _mark(3, True)]
    steps = [PlannedStep.model_validate(step) for step in [*outer, *unknown, _step("add")]]
    assert iterations_of(steps) == [1, 3, 30, 30, 30, 3, 3, 1, 1, 1, 1]
