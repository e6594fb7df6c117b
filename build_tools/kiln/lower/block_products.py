"""BlockProducts: matmuls of quantised rows by weights in blocks multiply the integers of both.

Weights of 8 or 4 bits with a scale for each block of k arrive here as float32 constants, whose levels are
found from their values (kiln.params.encodings). If the other operand is dequantised, with a scale and zero
point that the file gives or the run computes, one for all rows or for each row,

    sum_k s (x - z) w = s (sum_k x w - z sum_k w)

and the first sum becomes a matmul of x, in int8 or int16, by the weights, which kernels/cpu/block_int8.py
computes by sums of integers within each block. uint8 becomes int8, less 128. Exact but for the rounding of
sums of blocks to float32.
Products of int8 weights from -8 to 7 that kiln.graph.integer has made, as of int4 weights with a scale for
each column, become such products, too, so that the weights are stored in 4 bits. Their sums are below 2^24,
and so exact in float32.

Needs: constants that are folded. Guarantees: products by weights with a scale for each row, with blocks whose
sums do not fit 32 bits, or without levels stay as they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

from kiln.graph.bindings import CallRewriter, const, constant, operator, rewrite_calls
from kiln.graph.integer_dynamic import ComputedLevels, computed_levels
from kiln.graph.quantised_operands import scaled_levels
from kiln.kernels.cpu.block_int8 import suits
from kiln.params.encodings import find

_MIDDLE = 128  # of the range of uint8
_EXACT = 1 << 24  # integers up to this are exact in float32


def block_products(mod: tvm.IRModule, narrow: bool) -> tvm.IRModule:
    """Multiply the integers of quantised rows by those of weights with scales of blocks.

    narrow: also store int8 weights of 4 bits as such, which converts sums to float32 and back.
    """

    def rule(rewriter: CallRewriter, call: relax.Call) -> Any:
        if str(call.ty.dtype) == "int32":
            return _narrow_matmul(rewriter, call) if narrow else None
        return _matmul(rewriter, call)

    mod = rewrite_calls(mod, {"relax.matmul": rule})
    return relax.transform.DeadCodeElimination()(mod)


def _narrow_matmul(rewriter: CallRewriter, call: relax.Call) -> Any:
    """A matmul of bytes by constant weights of 4 bits, with the weights as float32; None for others."""
    weights, data = constant(rewriter.definition(call.args[1])), call.args[0]
    if weights is None or str(weights.dtype) != "int8" or weights.ndim != 2 or len(data.ty.shape) < 2:
        return None
    kind, depth = str(data.ty.dtype), int(weights.shape[0])
    in_four_bits = weights.min(initial=0) >= -8 and weights.max(initial=0) <= 7
    if kind not in ("int8", "uint8") or not in_four_bits or depth * 8 * _MIDDLE >= _EXACT:
        return None
    values, op, emit = weights.astype("float32"), relax.op, rewriter.emit
    encoding = find(values)
    if encoding is None or encoding.kind != "int4" or not suits(encoding, depth, "int8"):
        return None
    rows = _signed(rewriter, data) if kind == "uint8" else data
    product = emit(op.matmul(rows, const(values, "float32"), out_dtype="float32"))
    total = op.astype(product, "int32")
    if kind == "int8":
        return total
    return op.add(emit(total), const(_MIDDLE * weights.sum(axis=0, dtype=np.int32), "int32"))


def _matmul(rewriter: CallRewriter, call: relax.Call) -> Any:
    weights = constant(rewriter.definition(call.args[1]))
    if weights is None or str(weights.dtype) != "float32" or weights.ndim != 2:
        return None
    if len(call.args[0].ty.shape) < 2 or str(call.ty.dtype) != "float32":
        return None
    levels = _levels(rewriter, call.args[0])
    encoding = None if levels is None else find(weights)
    if levels is None or encoding is None:
        return None
    data, scale, zero = levels
    if not suits(encoding, weights.shape[0], "int16" if str(data.ty.dtype) == "int16" else "int8"):
        return None
    op, emit = relax.op, rewriter.emit
    if str(data.ty.dtype) == "uint8":
        data = _signed(rewriter, data)
        middle = const(np.float32(_MIDDLE), "float32")
        zero = emit(op.subtract(zero, middle)) if zero is not None else const(np.float32(-_MIDDLE), "float32")
    product = emit(op.matmul(data, call.args[1], out_dtype="float32"))
    if zero is not None:
        sums = const(weights.sum(axis=0, dtype=np.float64).astype(np.float32), "float32")
        product = emit(op.subtract(product, emit(op.multiply(zero, sums))))
    return op.multiply(product, scale)


def _signed(rewriter: CallRewriter, data: Any) -> Any:
    """uint8 `data` less 128, as int8: where it has just been quantised, by another zero point."""
    op, emit = relax.op, rewriter.emit
    call = rewriter.definition(data)
    zero = None if operator(call) != "relax.quantize" else call.args[2]
    if zero is not None and str(zero.ty.dtype) == "uint8":
        point = constant(zero)
        if point is not None:
            moved = const((point.astype(np.int16) - _MIDDLE).astype(np.int8), "int8")
        else:
            wide = emit(op.astype(zero, "int16"))
            less = emit(op.subtract(wide, const(np.int16(_MIDDLE), "int16")))
            moved = emit(op.astype(less, "int8"))
        return emit(op.quantize(call.args[0], call.args[1], moved, int(call.attrs.axis), "int8"))
    wide = emit(op.astype(data, "int16"))
    return emit(op.astype(emit(op.subtract(wide, const(np.int16(_MIDDLE), "int16"))), "int8"))


def _levels(rewriter: CallRewriter, expr: relax.Expr) -> tuple[Any, Any, Any] | None:
    """Integers, scale and zero point, both of float32, of rows that are dequantised; else None.

    The zero point is None for 0.
    """
    static = scaled_levels(rewriter, expr)
    if static is not None:
        if constant(rewriter.definition(static.data)) is not None:
            return None
        point = static.zero_point
        zero = const(np.float32(point), "float32") if point else None
        return static.data, const(np.float32(static.scale[0]), "float32"), zero
    computed: ComputedLevels | None = computed_levels(rewriter, expr, of_floats=True)
    if computed is None:
        return None
    zero = None
    if computed.zero is not None:
        zero = rewriter.emit(relax.op.astype(computed.zero, "float32"))
    return computed.data, computed.scale, zero
