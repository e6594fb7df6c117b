"""Loops and branches in the order of steps: which steps an iteration has, and how long their tensors live."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kiln.lower.schema import Step, TensorRecord
from kiln.plan.roots import root_of


def has_control(steps: Sequence[Step]) -> bool:
    """Whether there are steps that run several times, or only where a condition is true."""
    return any(step.loop is not None or step.branch is not None for step in steps)


def loop_ranges(steps: Sequence[Step]) -> list[tuple[int, int]]:
    """The first and the last step of each loop; a loop inside of another one comes before it."""
    first = {step.loop.number: index for index, step in enumerate(steps) if step.loop and not step.loop.ends}
    last = {step.loop.number: index for index, step in enumerate(steps) if step.loop and step.loop.ends}
    return sorted(((first[number], last[number]) for number in last), key=lambda pair: pair[1] - pair[0])


def without_invariants(tensors: Mapping[str, TensorRecord], steps: Sequence[Step]) -> list[Step]:
    """The steps, with loop-invariant steps moved before their loop.

    A step is invariant if it reads no tensor that the loop changes. Both branches of a choice move
    as one, with their control steps.
    """
    ordered = list(steps)
    numbers = [step.loop.number for step in steps if step.loop is not None and not step.loop.ends]
    for number in numbers:  # an outer loop comes before the loops inside of it
        marks = [
            index
            for index, step in enumerate(ordered)
            if step.loop is not None and step.loop.number == number
        ]
        first, last = marks
        # Values of the loops inside it are set again in each of its iterations.
        controls = [step for step in ordered[first:last] if step.loop is not None]
        changed = {root_of(tensors, name) for step in controls for name in step.writes}
        counted: set[str] = set()  # sizes that an iteration counts
        before: list[Step] = []
        inside: list[Step] = []
        for unit in _units(ordered[first + 1 : last]):
            roots = {root_of(tensors, name) for step in unit for name in (*step.tensors, *step.writes)}
            if roots & changed or any(counted & step.dims for step in unit):
                changed |= {root_of(tensors, name) for step in unit for name in step.writes}
                counted |= {step.counts.dim for step in unit if step.counts is not None}
                inside += unit
            else:
                before += unit
        ordered[first : last + 1] = [*before, ordered[first], *inside, ordered[last]]
    return ordered


def _units(steps: Sequence[Step]) -> list[list[Step]]:
    """The steps, each alone, but both branches of a choice together."""
    units: list[list[Step]] = []
    outer: int | None = None  # the number of the choice that the last unit is
    for step in steps:
        if outer is None:
            units.append([step])
            if step.branch is not None:
                outer = step.branch.number
            continue
        units[-1].append(step)
        if step.branch is not None and step.branch.number == outer and step.branch.part == "end":
            outer = None
    return units


def longer_lives(steps: Sequence[Step], first: dict[str, int], last: dict[str, int]) -> None:
    """Extend the lives of tensors, from step `first` to step `last`, for the iterations that follow.

    A tensor that is written before a loop and read inside it lives until the loop ends. A tensor that is
    written inside a loop and read after it lives from the loop's beginning.
    """
    for begin, end in loop_ranges(steps):
        for name, born in first.items():
            if born < begin <= last[name] < end:
                last[name] = end
            elif begin < born < end < last[name]:
                first[name] = begin
