"""IntegerArithmetic of sums and means: the sum of the integers of a quantised tensor, scaled once.

    sum(s (q - z)) = s (sum(q) - n z)        mean(s (q - z)) = s (sum(q) - n z) / n

with the sum in int32 and n elements in each sum. Where n is static, n z and s / n are constants; where axes
of dynamic size are summed, n is computed in the run. Needs: parameters bound as constants, and the ranges of
the dynamic dimensions in the attribute kiln.dims of `main`. Sums that may not fit into int32 stay in float.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, sym

from kiln.extents import shape_of
from kiln.graph.bindings import CallRewriter, Rule, const, integers, operator
from kiln.graph.quantised_operands import dequantised, rescale

# Values, by type, whose sum fits into int32 with a zero point.
_MOST_SUMMED = {"int8": 1 << 22, "uint8": 1 << 22, "int16": 1 << 14}


def integer_sums(
    greatest: Callable[[Any], int],
) -> dict[str, Rule]:
    """The rules for relax.sum and relax.mean.

    `greatest`: the greatest value of a size.
    """

    def rule(rewriter: CallRewriter, call: Any) -> Any:
        tensor = dequantised(rewriter, call.args[0], types=_MOST_SUMMED)
        if tensor is None or tensor.scale.size != 1:
            return None
        shape = shape_of(tensor.data)
        axes = list(range(len(shape))) if call.attrs.axis is None else integers(call.attrs.axis)
        sizes = [shape[axis] for axis in axes]
        most = _MOST_SUMMED[str(tensor.data.ty.dtype)]
        if math.prod(map(greatest, sizes)) >= most or any(size == 0 for size in map(_known, sizes)):
            return None
        wide = rewriter.emit(relax.op.astype(tensor.data, "int32"))
        total = rewriter.emit(relax.op.sum(wide, axes, bool(call.attrs.keepdims)))
        is_mean, scale = operator(call) == "relax.mean", float(tensor.scale[0])
        if all(isinstance(size, int) for size in sizes):
            count = math.prod(sizes)
            factor = np.asarray(scale / count if is_mean else scale)
            return rescale(rewriter, total, np.asarray(-tensor.zero_point * count), factor, [])
        return _of_dynamic_count(rewriter, total, sizes, (scale, tensor.zero_point), is_mean)

    return dict.fromkeys(("relax.sum", "relax.mean"), rule)


def _known(size: Any) -> int | None:
    return size if isinstance(size, int) else None


def _of_dynamic_count(
    rewriter: CallRewriter, total: Any, sizes: list[Any], quantisation: tuple[float, int], is_mean: bool
) -> Any:
    """The float sum or mean, from the int32 sums `total` of as many levels as the product of `sizes`.

    quantisation: the scale and the zero point of the levels.
    """
    op, emit, (scale, zero_point) = relax.op, rewriter.emit, quantisation
    count = sym.Analyzer().simplify(math.prod(sizes[1:], start=sizes[0]))
    number = emit(op.arange(relax.prim_value(count), relax.prim_value(count + 1), 1, "int64"))
    number = emit(op.astype(number, "int32"))
    if not len(total.ty.shape):
        number = emit(op.reshape(number, relax.ShapeExpr([])))
    if zero_point:
        total = emit(op.subtract(total, emit(op.multiply(number, const(zero_point, "int32")))))
    real = emit(op.multiply(emit(op.astype(total, "float32")), const(scale, "float32")))
    return op.divide(real, emit(op.astype(number, "float32"))) if is_mean else real
