"""Steps that count a size of the run come before all steps that take this size as an argument.

A tensor whose shape alone depends on such a size, as a range does, has no operand that the counting step
writes: the graph does not order the two.
"""

from __future__ import annotations

from collections.abc import Sequence

from kiln.lower.schema import LoweredFunction, Step


def counting(steps: Sequence[Step]) -> dict[str, int]:
    """The index of the first step that counts each counted dimension, by dimension."""
    first_steps: dict[str, int] = {}
    for index, step in enumerate(steps):
        if step.counts is not None:
            first_steps.setdefault(step.counts.dim, index)
    return first_steps


def in_order(lowered: LoweredFunction) -> list[int]:
    """Indices of the steps of a function in order, each one moved after the steps that count its sizes."""
    steps = list(lowered.steps)
    counters = counting(steps)
    if not counters:
        return list(range(len(steps)))
    alias = {tensor.name: tensor.alias for tensor in lowered.tensors}

    def root(name: str) -> str:
        while (owner := alias[name]) is not None:
            name = owner
        return name

    writers: dict[str, list[int]] = {}
    for index, step in enumerate(steps):
        for name in step.writes:
            writers.setdefault(root(name), []).append(index)
    order: list[int] = []
    placed: set[int] = set()

    def place(index: int) -> None:
        """Add a step after the steps that count its sizes and the earlier writers of its tensors."""
        stack = [index]
        while stack:
            step = stack[-1]
            roots = {root(name) for name in steps[step].tensors}
            needed = {writer for name in roots for writer in writers.get(name, ()) if writer < step}
            needed |= {counters[dim] for dim in steps[step].dims if dim in counters and counters[dim] != step}
            missing = sorted(needed - placed)
            if missing:
                stack.extend(reversed(missing))
                continue
            stack.pop()
            if step not in placed:
                placed.add(step)
                order.append(step)

    for index in range(len(steps)):
        place(index)
    return order
