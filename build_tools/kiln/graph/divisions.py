"""Divisions by constants as multiplications: x / c becomes x * (1 / c).

Processors divide vectors ten times slower than they multiply them. Guarantees: results differ by at most one
unit in the last place, and not at all where c is a power of two. Divisions by constants whose inverse is not
a normal number stay.

x / sqrt(y), where y has fewer elements than x, as in an instance normalisation, becomes x * (1 / sqrt(y)).
The inverse of a root of any float32 number is a normal number, or infinite where x / 0 is infinite or NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

from kiln.graph.bindings import CallRewriter, const, constant, operator, rewrite_calls, shape_of


def _divide(_rewriter: CallRewriter, call: Any) -> Any:
    divisor = constant(call.args[1])
    if divisor is None or str(divisor.dtype) != "float32" or constant(call.args[0]) is not None:
        return None
    with np.errstate(all="ignore"):
        inverse = (1.0 / divisor.astype("float64")).astype("float32")
    size = np.abs(inverse)
    if not (np.isfinite(inverse).all() and (size >= np.finfo("float32").tiny).all()):
        return None
    return relax.op.multiply(call.args[0], const(inverse, "float32"))


_NAMES = tuple(f"relax.{name}" for name in ("divide", "floor_divide", "mod", "floor_mod"))


def division_by_zero(call: Any) -> Any:
    """x / 0 as x * infinity, in integers as x * 0, a remainder as x * NaN; None for all other calls."""
    name = operator(call)
    divisor = constant(call.args[1]) if name in _NAMES else None
    if divisor is None or divisor.ndim or divisor != 0:
        return None
    dtype = str(divisor.dtype)
    if not dtype.startswith("float"):  # integers: what a division by 0 gives in the run
        return relax.op.multiply(call.args[0], const(0, dtype))
    if name in ("relax.mod", "relax.floor_mod"):
        return relax.op.multiply(call.args[0], const(np.nan, dtype))
    product = relax.op.multiply(call.args[0], const(np.copysign(np.inf, divisor), dtype))
    return product if name == "relax.divide" else relax.op.floor(product)


def divisions_by_zero(mod: tvm.IRModule) -> tvm.IRModule:
    """Replace divisions by a constant of one element that is 0, for which TVM 0.27 has an error."""
    return rewrite_calls(mod, dict.fromkeys(_NAMES, lambda _rewriter, call: division_by_zero(call)))


def divisions_by_constants(mod: tvm.IRModule) -> tvm.IRModule:
    """Replace float32 divisions by constants with multiplications by the inverse."""
    return rewrite_calls(mod, {"relax.divide": _divide})


def _divide_by_root(rewriter: CallRewriter, call: Any) -> Any:
    data, divisor = call.args
    if operator(rewriter.definition(divisor)) != "relax.sqrt" or str(divisor.ty.dtype) != "float32":
        return None
    sizes, fewer = shape_of(call), shape_of(divisor)
    is_one = [isinstance(size, int) and size == 1 for size in fewer]
    of_result = sizes[len(sizes) - len(fewer) :]
    broadcast = any(one and size != 1 for one, size in zip(is_one, of_result, strict=True))
    if constant(data) is not None or not (broadcast or len(fewer) < len(sizes)):
        return None
    inverse = rewriter.emit(relax.op.divide(const(1, "float32"), divisor))
    return relax.op.multiply(data, inverse)


def divisions_by_square_roots(mod: tvm.IRModule) -> tvm.IRModule:
    """Replace float32 divisions by a square root of fewer elements with multiplications by the inverse."""
    return rewrite_calls(mod, {"relax.divide": _divide_by_root})
