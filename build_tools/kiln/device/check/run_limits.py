"""Budgets of a run: compares the measurements of `test` with the limits in the bundle's manifest."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from kiln.config import Target
from kiln.device.bundle import Bundle, GoldenVector
from kiln.device.check.execute import Outcome
from kiln.device.check.runners import Runner
from kiln.errors import KilnError
from kiln.manifest import NAME, read_manifest
from kiln.tables import table_console

_UNITS = {"instructions": "instructions", "latency_ms": "ms"}


def over_budget(
    bundle: Bundle, vectors: Sequence[GoldenVector], outcome: Outcome, runner: Runner, target: Target
) -> list[str]:
    """A text for each vector whose run exceeds a budget of the model or target; prints them as a table.

    One text says that instructions are not counted where they cannot be. Raises KilnError for a limit of time
    where nothing measures it: under the emulator of a processor, and on an emulated machine without the
    target's key `clock`.
    """
    path = bundle.folder / NAME
    budgets = read_manifest(bundle.folder).get("run_budgets", []) if path.is_file() else []
    faults = []
    table = Table(title="budgets of a run exceeded", title_justify="left", title_style="bold")
    for name in ("budget", "vector", "limit", "used", "too much"):
        table.add_column(name, justify="left" if name in ("budget", "vector") else "right", no_wrap=True)
    for budget in budgets:
        owner, kind, limit = budget["owner"], budget["kind"], budget["limit"]
        used: Sequence[float] | None = None
        if kind == "latency_ms":
            used = _milliseconds(outcome, runner, target, owner)
        else:
            used = _instructions(outcome, runner)
        for vector, value in zip(vectors, used or [], strict=False):
            if value > limit:
                unit = _UNITS[kind]
                faults.append(
                    f"budget exceeded: vector {vector.name}: {_shown(value)} {unit}, "
                    f"{owner} allows {_shown(limit)}"
                )
                more = _shown(value - limit)
                table.add_row(f"{owner}, {unit}", vector.name, _shown(limit), _shown(value), more)
    if faults:
        table_console().print(table)
    return faults


def _shown(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.3f}" if abs(value) >= 0.1 else f"{value:.3g}"


def _instructions(outcome: Outcome, runner: Runner) -> list[int] | None:
    if runner.unit == "instructions":
        return outcome.nanoseconds
    print("  the budget of instructions is not checked: they are counted on emulated bare machines only")
    return None


def _milliseconds(outcome: Outcome, runner: Runner, target: Target, owner: str) -> list[float]:
    """The time of each vector's first run. Raises the errors of `over_budget`."""
    if runner.unit == "instructions" and target.clock is not None:
        milliseconds = 1000 * target.clock.cycles_per_instruction / target.clock.hz
        return [count * milliseconds for count in outcome.nanoseconds]
    if runner.unit != "ns" or not runner.identity:
        raise KilnError(
            f"budget 'latency_ms' of {owner}: {runner.description} measures no time of a processor of target "
            f"'{target.name}'; test with device=NAME, or leave the limit out"
        )
    return [count / 1e6 for count in outcome.nanoseconds]
