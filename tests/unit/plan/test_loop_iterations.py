"""How often steps run: in loops, in loops within loops, and in loops whose rounds no plan knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kiln.device.check.steps import steps_of
from kiln.plan.loop_iterations import iterations_of
from kiln.plan.schema import PlannedStep
from plans import plan_of


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


def test_operations_and_bytes_of_a_step_are_those_of_all_rounds() -> None:
    arg = {"dtype": "int8", "const": True}
    loop = [_mark(1, False), _step("matmul", [6], macs=5), _step("loop_row", [8, 16]), _mark(1, True)]
    kernels = [{"symbol": "k", "family": "conv", "flops": 7, "args": [arg] * 2}]
    for step in loop:
        step["args"] = (step["args"] * 2)[:2] or [{"at": "arena", "offset": 0, "bytes": 1}] * 2
    timed = steps_of(plan_of(kernels=kernels, buckets=[{"steps": loop}]), [1e-6] * 4)
    assert [(step.operations, step.read) for step in timed] == [(7, 2), (20, 24), (14, 48), (14, 4)]
