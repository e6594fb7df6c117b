"""Divisions by constants as multiplications: x / c becomes x * (1 / c).

Processors divide vectors ten times slower than they multiply them. Guarantees: results differ by at most one
unit in the last place, and not at all where c is a power of two. Divisions by constants whose inverse is not
a normal number stay, and so do those whose quotient an operator with steps reads, such as floor, directly or
through elementwise operators and moves: 41 * (1 / 41) is less than 1 in float32. A sum or a product of
matrices in between rounds more than the quotient does, and ends the search. Neither a quantisation by
constants nor a cast of the integers that it makes is such an operator.

x / sqrt(y), where y has fewer elements than x, as in an instance normalisation, becomes x * (1 / sqrt(y)).
The inverse of a root of any float32 number is a normal number, or infinite where x / 0 is infinite or NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

from kiln.extents import shape_of
from kiln.frontend import added_operators, branches
from kiln.graph.bindings import CallRewriter, const, constant, operator, rewrite_calls, variables

# Operators whose result jumps where an operand changes by its last bit. Casts to integers and quantisation by
# a computed scale do, too.
_STEPS = frozenset(
    f"relax.{name}"
    for name in (
        "ceil", "equal", "floor", "floor_divide", "floor_mod", "greater", "greater_equal", "less",
        "less_equal", "mod", "not_equal", "round", "sign", "trunc",
    )
)  # fmt: skip
# Operators that add up products or elements, or that approximate a function of a whole row.
_SUMS = frozenset(
    f"relax.{name}"
    for name in (
        "cumprod", "cumsum", "einsum", "matmul", "mean", "nn.adaptive_avg_pool2d", "nn.attention",
        "nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d", "nn.batch_norm", "nn.conv1d",
        "nn.conv1d_transpose", "nn.conv2d", "nn.conv2d_transpose", "nn.conv3d", "nn.conv3d_transpose",
        "nn.group_norm", "nn.instance_norm", "nn.layer_norm", "nn.log_softmax", "nn.rms_norm", "nn.softmax",
        "prod", "std", "sum", "variance",
    )
)  # fmt: skip


def _is_step(expr: relax.Expr) -> bool:
    """Whether a result of `expr` may jump where a float operand changes by its last bit."""
    name = operator(expr)
    if name == "relax.astype":  # of an integer it is exact: what made that may jump
        from_float, to_float = (_is_float(part) for part in (expr.args[0], expr))
        return from_float and not to_float
    if name == "relax.quantize":
        return constant(expr.args[1]) is None
    if name == "relax.call_dps_packed":  # a loop may do anything with its operands
        return not branches.is_choice(expr) and added_operators.name_of(expr) is not None
    return name in _STEPS


def _is_float(expr: relax.Expr) -> bool:
    return str(expr.ty.dtype).startswith(("float", "bfloat"))


def _exact_divisions(mod: tvm.IRModule) -> set[Any]:
    """The float32 divisions of `mod` whose quotients reach an operator with steps."""
    exact: set[Any] = set()
    for _, function in mod.functions_items():
        if not isinstance(function, relax.Function):
            continue
        reach: set[Any] = set()  # variables that an operator with steps reads
        for block in reversed(function.body.blocks):
            for binding in reversed(block.bindings):
                value, name = binding.value, operator(binding.value)
                if _is_step(value) or (binding.var in reach and name not in _SUMS):
                    reach.update(variables(value))
                if binding.var in reach and name == "relax.divide":
                    exact.add(value)
    return exact


def _divide(_rewriter: CallRewriter, call: relax.Call) -> Any:
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
    """Replace float32 divisions by constants, whose quotient no step reads, with products of the inverse."""
    exact = _exact_divisions(mod)

    def changed(rewriter: CallRewriter, call: Any) -> Any:
        return None if rewriter.original in exact else _divide(rewriter, call)

    return rewrite_calls(mod, {"relax.divide": changed})


def _divide_by_root(rewriter: CallRewriter, call: relax.Call) -> Any:
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
