"""Budgets of a run, its instructions and its time, which `test` checks: collected while a model is built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from kiln.config import Target
from kiln.emit.size_schema import BudgetOfRun
from kiln.errors import KilnError

KINDS: tuple[Literal["instructions", "latency_ms"], ...] = ("instructions", "latency_ms")


def run_budgets(budgets: Mapping[str, Mapping[str, Any]], target: Target) -> list[BudgetOfRun]:
    """Owner, kind and limit of every budget of a run, for the manifest.

    `budgets`: owner → its limits, as in YAML. Raises KilnError for a limit of time on a target without an
    operating system that has no key `clock`.
    """
    run_limits = [
        BudgetOfRun(owner=owner, kind=kind, limit=limits[kind])
        for owner, limits in budgets.items()
        for kind in KINDS
        if limits.get(kind) is not None
    ]
    for budget in run_limits:
        if budget.kind == "latency_ms" and target.deployment == "freestanding" and target.clock is None:
            raise KilnError(
                f"budget 'latency_ms' of {budget.owner}: instructions are counted on target "
                f"'{target.name}', and its file has no clock to make a time of them: add a key such as "
                "clock: {hz: 168MHz, cycles_per_instruction: 1.2}"
            )
    return run_limits
