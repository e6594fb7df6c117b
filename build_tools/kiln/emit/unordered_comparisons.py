"""Inequalities of floats that hold for NaN, as in C and IEEE 754.

TVM compiles `a != b` to LLVM's ordered comparison, which holds for no NaN: then neither `x == x` nor `x != x`
is true. The negation of `a == b` has the right value, and costs no instruction more.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from kiln.callbacks import structural_map


def hold_for_nan(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with each `a != b` of floats as `!(a == b)`."""

    def on_unequal(comparison: Any) -> Any:
        dtype = str(comparison.a.ty.dtype).partition("x")[0]
        return (
            tirx.Not(tirx.EQ(comparison.a, comparison.b))
            if dtype.startswith(("float", "bfloat"))
            else comparison
        )

    return structural_map(func, ((tirx.NE, on_unequal),))
