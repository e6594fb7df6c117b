"""The cases of one bucket: its general function, and functions for special input contents or sizes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import tvm

from kiln.lower.schema import CaseConditions, ConstantName, InputEquals, SizeInRange, SizeIsMultiple
from kiln.params import store
from kiln.specialize.conditions import Equals, InputIs, MultipleOf, OnSize
from kiln.specialize.dispatch import leaves


@dataclass(frozen=True)
class Case:
    """A module with one function, `main`, and the condition under which it runs.

    `when`: the condition; None: the general case. `constants`: by name, the tensors
    that the condition compares inputs with.
    """

    name: str
    module: tvm.IRModule
    when: CaseConditions | None = None
    constants: store.Tensors = field(default_factory=dict)


def cases_of(module: tvm.IRModule) -> list[Case]:
    """The cases of a module from the specialize stage, the general case first.

    In a condition, sizes come before contents of inputs, so that sizes are compared first.
    """
    names = [parameter.name for parameter in module["main"].params]
    cases: list[Case] = []
    for special in leaves(module):
        if not special.when:
            cases.insert(0, Case("", special.module))
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
                    value = ConstantName(param=name)
                contents.append(InputEquals(input=names.index(atom.input), value=value))
        when = CaseConditions(all=[*sizes, *contents])
        cases.append(Case(special.name, special.module, when, constants))
    return cases


def _size(atom: OnSize) -> SizeInRange | SizeIsMultiple:
    """A condition on a dimension: a range of sizes or a divisor."""
    if isinstance(atom, MultipleOf):
        return SizeIsMultiple(dim=atom.dim, multiple=atom.factor)
    least, greatest = (atom.value, atom.value) if isinstance(atom, Equals) else (atom.least, atom.greatest)
    return SizeInRange(dim=atom.dim, min=least, max=greatest)
