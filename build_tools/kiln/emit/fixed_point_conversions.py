"""Products that LLVM must not turn into a conversion of fixed-point numbers, for cores with Helium.

LLVM selects VCVT with fraction bits for an integer that is converted to float32 and multiplied by a power of
two. If the factor has several uses, LLVM emits a wrong number of fraction bits: 2^-8 became 2^-13. A fused
multiply-add with zero has the same value, and LLVM does not select VCVT for it.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import tirx

from kiln.callbacks import structural_map


def hide_powers_of_two(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Each float32 product with a constant power of two as a multiply-add with 0; -0.0 becomes 0.0."""

    def on_product(product: Any) -> Any:
        factor, scale = (product.a, product.b) if _is_power(product.b) else (product.b, product.a)
        if str(product.ty.dtype).partition("x")[0] != "float32" or not _is_power(scale):
            return product
        zero: Any = tirx.const(0.0, "float32")
        if isinstance(scale, tirx.Broadcast):
            zero = tirx.Broadcast(zero, scale.lanes)
        return tirx.call_llvm_pure_intrin(str(product.ty.dtype), "llvm.fma", factor, scale, zero)

    return structural_map(func, ((tirx.Mul, on_product),))


def _is_power(expr: Any) -> bool:
    """Whether an expression is a constant 2^n or -2^n other than 1 and -1, or a vector of such a constant."""
    value = expr.value if isinstance(expr, tirx.Broadcast) else expr
    if not isinstance(value, tirx.FloatImm) or not math.isfinite(value.value):
        return False
    return math.frexp(abs(value.value))[0] == 0.5 and abs(value.value) != 1.0
