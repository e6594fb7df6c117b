"""Sums of an integer and the sign bit alone, the least number of its type or half of an unsigned one's range.

Integers of a model wrap, but TVM tells LLVM that sums of 32 and 64 bits do not overflow. LLVM then takes
`x + least` for `x | least`, which is wrong where x has the sign bit. Modulo 2^bits the sum is the exclusive
or, and so is the difference.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from kiln.callbacks import structural_map


def flip_sign_bits(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with the exclusive or in place of each sum or difference with the sign bit."""

    def on_sum(node: Any) -> Any:
        for constant, other in ((node.b, node.a), (node.a, node.b)):
            if _is_sign_bit(constant):
                return tirx.bitwise_xor(other, constant)
        return node

    def on_difference(node: Any) -> Any:
        return tirx.bitwise_xor(node.a, node.b) if _is_sign_bit(node.b) else node

    return structural_map(func, ((tirx.Add, on_sum), (tirx.Sub, on_difference)))


def _is_sign_bit(operand: Any) -> bool:
    value = operand.value if isinstance(operand, tirx.Broadcast) else operand
    if not isinstance(value, tirx.IntImm):
        return False
    bits = int(tvm.DataType(str(value.ty.dtype)).bits)
    return int(value.value) % (1 << bits) == 1 << (bits - 1)
