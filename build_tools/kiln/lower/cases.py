"""The functions of one bucket: the general one, and those for special contents of inputs and for sizes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import tvm

from kiln.params import store
from kiln.specialize.conditions import Equals, InputIs, MultipleOf, OnSize
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

    Sizes come before contents: they are looked at first.
    """
    names = [parameter.name for parameter in module["main"].params]
    found: list[Case] = []
    for special in leaves(module):
        if not special.when:
            found.insert(0, Case("", special.module))
            continue
        constants: store.Tensors = {}
        sizes = [_size(atom) for atom in special.when if not isinstance(atom, InputIs)]
        contents = []
        for atom in special.when:
            if isinstance(atom, InputIs):
                value: Any = atom.value
                if atom.tensor is not None:
                    name = f"{special.name}.{atom.input}"
                    constants[name] = atom.tensor
                    value = {"param": name}
                contents.append({"input": names.index(atom.input), "value": value})
        found.append(Case(special.name, special.module, {"all": [*sizes, *contents]}, constants))
    return found


def _size(atom: OnSize) -> dict[str, Any]:
    """A condition on a dimension as plan.json has it: a range of sizes, or what divides them."""
    if isinstance(atom, MultipleOf):
        return {"dim": atom.dim, "multiple": atom.factor}
    least, greatest = (atom.value, atom.value) if isinstance(atom, Equals) else (atom.least, atom.greatest)
    return {"dim": atom.dim, "min": least, "max": greatest}
