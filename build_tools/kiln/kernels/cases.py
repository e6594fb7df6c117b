"""The functions of one bucket: the general one, and those for special contents of an input."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import tvm

from kiln.errors import KilnError
from kiln.params import store
from kiln.specialize.conditions import InputIs
from kiln.specialize.dispatch import leaves


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
    """The cases of a module that the specialize stage has made, the general one first.

    Raises KilnError for a case that is not about the content of one input: sizes are for buckets.
    """
    names = [parameter.name for parameter in module["main"].params]
    found: list[Case] = []
    for special in leaves(module):
        if not special.when:
            found.insert(0, Case("", special.module))
            continue
        condition = special.when[0]
        if len(special.when) > 1 or not isinstance(condition, InputIs):
            raise KilnError(f"special case '{special.name}': only the content of one input can be tested")
        value: Any = condition.value
        constants: store.Tensors = {}
        if condition.tensor is not None:
            constants = {f"{special.name}.value": condition.tensor}
            value = {"param": f"{special.name}.value"}
        when = {"input": names.index(condition.input), "value": value}
        found.append(Case(special.name, special.module, when, constants))
    return found
