"""Truth values that vectors of integers are computed from become selections of 1 and 0.

TVM 0.27's code generator estimates the range of each value that an expression binds, such as the remainder of
a FloorMod. Of a vector of comparisons it makes a number with lanes, and stops: "IntImm can only take scalar".
It does not look at the condition of a selection. LLVM compiles both to the same instructions.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from kiln.callbacks import structural_map, structural_walk


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
