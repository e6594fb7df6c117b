"""Conditions of reductions that threads share, in the form in which TVM keeps them where results are stored.

TVM 0.27 (LowerCrossThreadReduction) takes the condition of a reduction for the block that stores its result
from the operands of `and` alone. A condition that is a single comparison is lost there: where the results of
a launch do not fill its blocks, threads without a result would store one behind the tensor.
"""

from __future__ import annotations

from typing import Any

from tvm import s_tir, tirx

from kiln.callbacks import structural_map


def with_joined_conditions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A scheduled `func` in which every condition of a reduction is an `and`."""

    def joined(realize: Any) -> Any:
        condition = realize.predicate
        if realize.block.init is None or isinstance(condition, (tirx.And, tirx.IntImm)):
            return realize
        both = tirx.And(condition, condition)  # TVM would not find its reduction in an `and` with a constant
        return s_tir.SBlockRealize(realize.iter_values, both, realize.block)

    return func.with_body(structural_map(func.body, [(s_tir.SBlockRealize, joined)]))
