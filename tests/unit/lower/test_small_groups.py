"""Groups for GPUs, whose schedules write producers out at every use, stay small."""

from __future__ import annotations

from typing import Any

import pytest
from kiln.config import load_target
from kiln.kernels.operators.legalize import RULES
from kiln.lower.pipeline import Lowering, lower
from kiln.lower.small_groups import small_groups
from kiln.opinfo import attach
from kiln.tir.inline import LARGEST_TREE
from relaxed import module
from tvm import relax

op = relax.op


def chain(length: int) -> Any:
    def body(x: Any) -> Any:
        for _ in range(length):
            x = op.add(x, x)
        return x

    return module([((4, 37), "float32")], body)


def annotated(length: int) -> Any:
    mod = attach.legalize_with_info(RULES, [])(relax.transform.Normalize()(chain(length)))
    return attach.annotate(relax.transform.AnnotateTIROpPattern()(mod))


def test_code_grows_with_the_length_of_a_chain() -> None:
    text = {}
    for length in (20, 40):
        steps = lower(chain(length), Lowering("m", load_target("cuda"), "none"))
        text[length] = sum(len(func.script()) for func in steps.functions.values()) * len(steps.steps)
    assert text[40] < 3 * text[20]


@pytest.mark.parametrize("length, parts", [(1, 1), (7, 1), (8, 2), (40, 6)])
def test_a_group_holds_so_many_operators(length: int, parts: int) -> None:
    """An element after n of these operators holds 2^n - 1: seven fit, the eighth is a kernel of its own."""
    assert LARGEST_TREE == 128
    mod = small_groups(annotated(length))
    opaque = [v.name_hint for v, f in mod.functions_items() if v.name_hint.endswith("_apart")]
    calls = [b.value.args[0].name_hint for block in mod["main"].body.blocks for b in block.bindings
             if isinstance(b.value, relax.Call)]  # fmt: skip
    assert len(calls) == length
    assert sum(name in opaque for name in calls) == parts - 1
