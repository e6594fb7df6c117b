"""State of a model: inputs that are fed from outputs of the run before."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from kiln.config.check import Section


def _numbers(value: Any) -> Any:
    """`value`, a number or nested lists of numbers. Raises ValueError for anything else."""
    if isinstance(value, list):
        for item in value:
            _numbers(item)
    elif not isinstance(value, (bool, int, float)):
        raise ValueError(f"a number or a list of numbers expected, got {value!r}")
    return value


class KeptValue(Section):
    """The output that an input is fed from, and the input's value in the first run."""

    output: str = Field(description="the output of the run before")
    initial: Annotated[Any, AfterValidator(_numbers)] = Field(
        default=0, description="value in the first run: a number, or a list of numbers of the input's shape"
    )


# An entry of `state`: a section, or the name of the output alone.
StateEntry = Annotated[
    KeptValue, BeforeValidator(lambda value: {"output": value} if isinstance(value, str) else value)
]
