"""Divisions that round towards zero become divisions that round down, before loops become vectors.

TVM 0.27 divides a vector of indices by dividing its first index and the distance between indices, also where
the division rounds towards zero and an index is below 0: (1 - 2 * i) / 2 is 0 for i = 1, and -1 as a vector.
Of divisions that round down the result is right. TVM's dilated average pools count their elements so.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, TensorLoad

from kiln.callbacks import structural_map, structural_walk

_TRUNCATED = (tirx.Div, tirx.Mod)


def round_down(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` without truncated divisions, and remainders, of indices by positive constants.

    Divisions of elements stay as they are: their vectors are not simplified.
    """
    interrupted = structural_walk(
        func.body, [(_TRUNCATED, lambda node: tvm_ffi.VisitInterrupt() if _is_of_indices(node) else None)]
    )
    if interrupted is None:
        return func
    return func.with_body(structural_map(func.body, ((_TRUNCATED, _rounded),)))


def _is_of_indices(node: Any) -> bool:
    if not isinstance(node.b, tirx.IntImm) or int(node.b.value) <= 0 or isinstance(node.a, tirx.IntImm):
        return False
    loaded = structural_walk(node.a, [((TensorLoad, Call), lambda _: tvm_ffi.VisitInterrupt())])
    return loaded is None


def _rounded(node: Any) -> Any:
    """The division of the magnitude, with the sign of the dividend."""
    if not _is_of_indices(node):
        return node
    a, b = node.a, node.b
    zero = tirx.IntImm(str(a.ty.dtype), 0)
    kind = tirx.FloorDiv if isinstance(node, tirx.Div) else tirx.FloorMod
    return tirx.Select(tirx.GE(a, zero), kind(a, b), tirx.Sub(zero, kind(tirx.Sub(zero, a), b)))
