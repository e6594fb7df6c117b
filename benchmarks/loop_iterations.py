"""How often each step of a plan runs in one run: steps in a loop once for each of its iterations."""

from __future__ import annotations

from collections.abc import Sequence

from kiln.plan.schema import ExpressionArgument, PlannedStep

_ROW = "loop_row"  # label of the step that writes a row of a result in each iteration


def iterations_of(steps: Sequence[PlannedStep]) -> list[int]:
    """The number of times that each step runs, at the greatest sizes; for nested loops, the product.

    A loop has as many iterations as rows of a result that it writes, and counts as one iteration if it writes
    none: its condition then depends on values.
    """
    iterations, open_loops = [1] * len(steps), list[int]()
    for index, step in enumerate(steps):
        if step.loop is not None and not step.loop.ends:
            open_loops.append(index)
        elif step.loop is not None:
            begin = open_loops.pop()
            own = _rows(steps, begin, index)
            for inside in range(begin + 1, index + 1):
                iterations[inside] *= own
    return iterations


def _rows(steps: Sequence[PlannedStep], begin: int, end: int) -> int:
    """Rows that the loop between two control steps writes itself, not in loops within it; at least 1."""
    depth, rows = 0, 1
    for step in steps[begin + 1 : end]:
        if step.loop is not None:
            depth += -1 if step.loop.ends else 1
        elif step.label == _ROW and depth == 0:
            sizes = [arg.bytes for arg in step.args if not isinstance(arg, ExpressionArgument)]
            rows = sizes[-1] // sizes[0] if sizes[0] else 1
    return max(rows, 1)
