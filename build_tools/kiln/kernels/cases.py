"""The functions of one bucket: the general one, and those for special contents of an input."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import tvm

from kiln.params import store


@dataclass(frozen=True)
class Case:
    """A module with one function, `main`. `when`: the condition as plan.json has it; None: the general one.

    `constants`: tensors that the condition compares with, by name.
    """

    name: str
    module: tvm.IRModule
    when: dict[str, Any] | None = None
    constants: store.Tensors = field(default_factory=dict)


def cases_of(module: tvm.IRModule) -> list[Case]:
    """The cases of a module that the specialize stage has made, the general one first."""
    return [Case("", module)]
