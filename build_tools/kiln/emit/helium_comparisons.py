"""Comparisons with NaN on cores with Helium: false, as in C and IEEE 754, but for inequality.

VCMP's conditions LT and LE are the opposites of GE and GT: both hold for NaN. LLVM 22 compiles `x < c` to
`c > x`, which is right, and turns it round to `x LT c` where all lanes of c are equal, because only the
second operand can be one register of the core. Then NaN is less than every constant, and `isnan`, which is
two comparisons with 0, is never true. LLVM does not know the value of a fence, so it keeps the operands of a
comparison with a fence where they are. One of scalars in a loop, of which LLVM might make one of vectors, has
fences too: it makes no vectors of them. `isnan` is computed from the bits.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Call

from kiln.callbacks import structural_map
from kiln.tir.vector_expr import in_lanes, reinterpreted, scalar

# By class, the operand that VCMP compares whether it is greater, which comes first in the instruction.
_GREATER = {tirx.LT: "b", tirx.LE: "b", tirx.GT: "a", tirx.GE: "a", tirx.Max: "a", tirx.Min: "b"}
# By type, the type of its bits, all of these but the sign, and the bits of infinity.
_BITS = {"float32": ("int32", 0x7FFFFFFF, 0x7F800000)}


def compare_in_order(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with comparisons, maxima and minima of float32 for which NaN is neither less nor greater."""

    def on_pair(pair: Any) -> Any:
        if scalar(pair.a) not in _BITS:
            return pair
        if tvm.DataType(str(pair.a.ty.dtype)).lanes == 1:
            return type(pair)(_fenced(pair.a), _fenced(pair.b))
        if _GREATER[type(pair)] == "a":
            return type(pair)(_fenced(pair.a), pair.b)
        return type(pair)(pair.a, _fenced(pair.b))

    def on_call(call: Any) -> Any:
        if getattr(call.op, "name", "") != "tirx.isnan" or scalar(call.args[0]) not in _BITS:
            return call
        dtype, all_but_sign, infinity = _BITS[scalar(call.args[0])]
        bits = reinterpreted(call.args[0], dtype)
        mask, limit = (in_lanes(tirx.const(number, dtype), bits) for number in (all_but_sign, infinity))
        return tirx.GT(tirx.bitwise_and(bits, mask), limit)

    rules = [*((kind, on_pair) for kind in _GREATER), (Call, on_call)]
    return func.with_body(structural_map(func.body, rules))


def _fenced(value: Any) -> Any:
    """`value` behind a fence, which is no instruction; a constant scalar as it is."""
    if isinstance(value, tirx.FloatImm):
        return value
    return tirx.call_llvm_pure_intrin(str(value.ty.dtype), "llvm.arithmetic.fence", value)
