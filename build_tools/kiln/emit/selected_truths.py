"""Truth values that numbers are computed from become selections of 1 and 0.

TVM 0.27's code generator estimates the range of each value that an expression binds, such as the remainder of
a FloorMod. Of a vector of comparisons it makes a number with lanes, and stops: "IntImm can only take scalar".
It does not look at the condition of a selection. LLVM compiles both to the same instructions.

LLVM 22 ends with "Cannot select" where it makes four float32 of comparisons of four 64-bit numbers in a
register of SVE, also of those of a scalar loop that it vectorises. It compiles selections.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from kiln.callbacks import structural_map, structural_walk
from kiln.tir.vector_expr import in_lanes, scalar


def select_truths(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with `condition ? 1 : 0` in place of each vector of truth values that is cast to integers.

    A function that binds no value in an expression is returned as it is.
    """
    if structural_walk(func.body, [(tirx.Let, lambda _: tvm_ffi.VisitInterrupt())]) is None:
        return func
    return func.with_body(structural_map(func.body, ((tirx.Cast, _selected),)))


def _selected(cast: Any) -> Any:
    truth, dtype = (tvm.DataType(str(node.ty.dtype)) for node in (cast.value, cast))
    element = str(dtype).partition("x")[0]
    if truth.lanes == 1 or not str(truth).startswith("bool") or not element.startswith(("int", "uint")):
        return cast
    one, zero = (tirx.Broadcast(tirx.const(value, element), truth.lanes) for value in (1, 0))
    return tirx.Select(cast.value, one, zero)


def select_floats(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with `condition ? 1 : 0` in place of each truth value that is cast to a float."""
    return func.with_body(structural_map(func.body, ((tirx.Cast, _selected_float),)))


def _selected_float(cast: Any) -> Any:
    truth, element = scalar(cast.value), scalar(cast)
    if truth != "bool" or not element.startswith("float"):
        return cast
    one, zero = (in_lanes(tirx.FloatImm(element, value), cast.value) for value in (1.0, 0.0))
    return tirx.Select(cast.value, one, zero)
