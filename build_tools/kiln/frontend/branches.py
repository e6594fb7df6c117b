"""A choice in a Relax graph: the operator `choose`, whose results are those of one of two branches.

Its operands are a condition, the values of the first branch and those of the second one, of the same types.
The branches are part of the main graph: what nothing but one of them needs is computed only where it is
chosen (lower/branches.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kiln.frontend import added_operators

CHOOSE = "choose"


def choose(condition: Any, first: Sequence[Any], second: Sequence[Any]) -> Any:
    """The values `first` where `condition`, a tensor bool[1], is true, else `second`.

    A tuple where there are several. Values at one position have the same type and shape.
    """
    types = [expr.ty for expr in first]
    return added_operators.call(CHOOSE, [condition, *first, *second], {"values": len(types)}, types)


def is_choice(expr: Any) -> bool:
    """Whether `expr` is a call of `choose`."""
    return added_operators.name_of(expr) == CHOOSE


def parts(call: Any) -> tuple[Any, list[Any], list[Any]]:
    """The condition of a call of `choose`, and the values of both branches."""
    condition, *values = call.args[1].fields
    count = len(values) // 2
    return condition, values[:count], values[count:]
