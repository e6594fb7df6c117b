"""All cases, of every file."""

from __future__ import annotations

from .cases import basic_cases
from .edges import cases_of_attributes
from .files import OperatorCase
from .specials import cases_of_specials
from .weighted import cases_of_weights


def cases() -> list[OperatorCase]:
    """All cases, by the order of the files."""
    return [*basic_cases(), *cases_of_attributes(), *cases_of_weights(), *cases_of_specials()]
