"""All cases, of every file."""

from __future__ import annotations

from .elementwise import elementwise_cases
from .elementwise_edges import cases_of_activations, cases_of_operands
from .files import OperatorCase
from .moves import moving_cases
from .neural import neural_cases
from .reductions import reducing_cases
from .shape_edges import cases_of_axes, cases_of_shapes
from .specials import cases_of_specials
from .weighted import cases_of_weights


def cases() -> list[OperatorCase]:
    """All cases; those of an operator begin with the plain ones, which have no attributes."""
    groups = (
        elementwise_cases, moving_cases, reducing_cases, neural_cases,
        cases_of_activations, cases_of_operands, cases_of_axes, cases_of_shapes,
        cases_of_weights, cases_of_specials,
    )  # fmt: skip
    return [case for group in groups for case in group()]
