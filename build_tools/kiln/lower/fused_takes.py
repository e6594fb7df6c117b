"""FusedTakes: elements that a take picks are used in the kernel that computes with them.

TVM marks a take as opaque, since its indices are read from memory: what it picks would be stored, and read
again by the next kernel. Marks takes as injective, so that FuseOps fuses them with their readers.
Applies to takes whose readers are takes or compute element by element, and whose operands are not computed in
that way: fused with those, too, they would compute an element as often as they pick it.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm.tirx import PrimFunc

from kiln.graph.bindings import operator
from kiln.opinfo.attach import of
from kiln.opinfo.kinds import KINDS, PATTERN

_NUMBERS = {name: number for number, name in KINDS.items()}


def fused_takes(mod: tvm.IRModule) -> tvm.IRModule:
    """Mark takes as injective to fusion; runs after AnnotateTIROpPattern and before fusion."""
    bindings = [binding for block in mod["main"].body.blocks for binding in block.bindings]
    calls = {one.var: one.value for one in bindings if operator(one.value) == "relax.call_tir"}
    readers: dict[Any, list[Any]] = {}
    for var, call in calls.items():
        for operand in call.args[1].fields:
            readers.setdefault(operand, []).append(var)

    def at_most(var: Any, pattern: str) -> bool:
        """Whether `var` is the result of a function of this pattern or a simpler one."""
        func = mod[calls[var].args[0]] if var in calls else None
        return isinstance(func, PrimFunc) and int(func.attrs[PATTERN]) <= _NUMBERS[pattern]

    def is_take(var: Any) -> bool:
        func = mod[calls[var].args[0]]
        return isinstance(func, PrimFunc) and [op["name"] for op in of(func)] == ["take"]

    def applies(var: Any) -> bool:
        """Whether the take that makes `var` is fused with its readers."""
        computed = any(at_most(operand, "injective") for operand in calls[var].args[1].fields)
        return not computed and all(
            is_take(reader) or at_most(reader, "broadcast") for reader in readers.get(var, [])
        )

    names: dict[str, bool] = {}
    for var in filter(is_take, calls):
        name = calls[var].args[0].name_hint
        names[name] = names.get(name, True) and applies(var)
    for variable, func in list(mod.functions_items()):
        if names.get(variable.name_hint, False):
            mod.update_func(variable, func.with_attr(PATTERN, _NUMBERS["injective"]))
    return mod
