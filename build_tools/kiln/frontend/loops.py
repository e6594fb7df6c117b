"""A loop in a Relax graph: the operators `loop_begin`, `loop_row` and `loop_end` around the body's operators.

The body is part of the main graph. What depends on the results of a `loop_begin`, and is needed by the
`loop_end` of the same number, is computed in every iteration. Both have a condition, a counter and the
carried values as operands, of the first and of the next iteration, and as results. A loop runs no iteration
where the condition is false at its beginning; its results are then the operands of `loop_begin`. A `loop_row`
writes a row of a result of the loop in each iteration; these results follow the carried values of
`loop_end`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from kiln.frontend import added_operators

BEGIN, ROW, END = "loop_begin", "loop_row", "loop_end"


def begin(number: int, first: Sequence[Any], outer: Sequence[Any]) -> Any:
    """The beginning of loop `number`: condition, counter and carried values of the first iteration.

    `outer`: counters of the loops around it, so that it is part of their iterations.
    """
    types = [expr.ty for expr in first]
    attributes = {"loop": number, "values": len(types)}
    return added_operators.call(BEGIN, [*first, *outer], attributes, types)


def row(value: Any, counter: Any, rows: Any, axis: int, backwards: bool) -> Any:
    """A tensor of `rows` rows along `axis` whose row `counter` becomes `value`; the other rows stay.

    `backwards`: the first iteration writes the last row.
    """
    shape = list(value.ty.shape)
    shape.insert(axis, rows)
    kind = relax.TensorType(shape, str(value.ty.dtype))
    attributes = {"axis": axis, "backwards": backwards}
    return added_operators.call(ROW, [value, counter], attributes, [kind])


def end(number: int, following: Sequence[Any], rows: Sequence[Any]) -> Any:
    """The end of loop `number`: condition, counter and carried values of the next iteration, and rows."""
    types = [expr.ty for expr in (*following, *rows)]
    attributes = {"loop": number, "values": len(following)}
    return added_operators.call(END, [*following, *rows], attributes, types)
