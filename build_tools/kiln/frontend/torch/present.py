"""Operators of the installed PyTorch; versions differ in the operators that they have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Absent:
    """An operator, or an overload of one, that the installed PyTorch lacks: no program has it."""

    def __getattr__(self, name: str) -> Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent()


class Namespace:
    """The operators of a namespace such as torch.ops.aten; one that is not there is `Absent`."""

    def __init__(self, operators: Any) -> None:
        self._operators = operators

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operators, name, Absent())


def aten() -> Namespace:
    """PyTorch's own operators."""
    import torch

    return Namespace(torch.ops.aten)


def present(table: Mapping[Any, Any]) -> dict[Any, Any]:
    """The entries of a table by operator that the installed PyTorch has."""
    return {operator: entry for operator, entry in table.items() if not isinstance(operator, Absent)}
