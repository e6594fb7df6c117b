"""Helpers of the passes see every call of a function, those in branches too."""

from __future__ import annotations

from typing import Any

import tvm
from kiln.graph.bindings import count_uses, has_operator, rewrite_calls
from relaxed import module
from tvm import relax

op = relax.op


BRANCHES = """
@I.ir_module
class Branches:
    @R.function
    def main(c: R.Tensor((), "bool"), x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        if c:
            y = R.nn.relu(x)
        else:
            t = R.exp(x)
            y = R.add(t, t)
        return y
"""


def test_operators_of_branches_are_found() -> None:
    mod = tvm.script.from_source(BRANCHES)
    assert all(has_operator(mod, (f"relax.{name}",)) for name in ("nn.relu", "exp", "add"))
    assert not has_operator(mod, ("relax.multiply",))
    uses = {variable.name: number for variable, number in count_uses(mod).items()}
    assert (uses["c"], uses["x"], uses["t"]) == (1, 2, 2)


def test_a_module_without_the_operators_is_returned_as_it_is() -> None:
    mod = module([((4,), "float32")], lambda x: op.add(op.nn.relu(x), x))
    seen: list[Any] = []
    assert rewrite_calls(mod, {"relax.multiply": lambda _, call: seen.append(call)}) is mod
    assert rewrite_calls(mod, {"relax.add": lambda _, call: seen.append(call)}) is not mod
    assert len(seen) == 1
