"""Kiln's own legalisation rules, for operators whose TVM rule needs a library or rounds in another way."""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

import numpy as np
from tvm import relax, te, tirx, topi
from tvm.ir import Op

from kiln.config import Target
from kiln.graph.bindings import constant
from kiln.kernels.operators import indices, not_a_number
from kiln.kernels.operators.grid_sample import grid_sample
from kiln.kernels.operators.non_max_suppression import all_class_non_max_suppression
from kiln.kernels.operators.pooling import average_pool
from kiln.kernels.operators.prefix_sum import scan_rule
from kiln.kernels.operators.roi_align import roi_align
from kiln.kernels.operators.selection import topk
from kiln.kernels.operators.topk import arg_extreme
from kiln.tir.vector_expr import round_to_bits

RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767), "uint16": (0, 65535)}


def _parameter(expr: relax.Expr, axis: int) -> Any:
    """A scale or zero point: the tensor to read it from (None for a scalar constant), and how to read it.

    The second value is a function of that tensor and the indices of an element; a tensor has one value, or
    one for each index of `axis`.
    """
    value = constant(expr)
    if value is not None and value.size == 1:
        dtype = str(value.dtype)
        number = value.reshape(-1)[0]
        imm = (
            tirx.FloatImm(dtype, float(number))
            if value.dtype.kind == "f"
            else tirx.IntImm(dtype, int(number))
        )
        return None, lambda _tensor, _indices: imm
    return expr, lambda tensor, indices: tensor(indices[axis]) if len(tensor.shape) else tensor()


def quantize(builder: relax.BlockBuilder, call: relax.Call, rounded: Any = None) -> Any:
    """Legalisation rule for relax.quantize: round(clamp(x / scale)) + zero point.

    The clamp keeps the result in the range of the output type, and makes NaN its least level, as ONNX Runtime
    does. If the scale is a constant, the division is a
    multiplication by 1 / scale. Ties round to even, as in ONNX's QuantizeLinear and in XNNPACK. `rounded`:
    function that rounds a float with magnitude below 2^22 to an integer; None: by bits (round_to_bits).
    """
    dtype = str(call.attrs.out_dtype)
    if dtype not in RANGES or str(call.args[0].ty.dtype) != "float32":
        return _default("relax.quantize")(builder, call)
    low, high = RANGES[dtype]
    axis = int(call.attrs.axis)
    scale_expr, scale = _parameter(call.args[1], axis)
    zero_expr, zero = _parameter(call.args[2], axis)
    tensors = [expr for expr in (scale_expr, zero_expr) if expr is not None]

    def compute(data: Any, *extra: Any) -> Any:
        remaining = list(extra)
        scales = remaining.pop(0) if scale_expr is not None else None
        zeros = remaining.pop(0) if zero_expr is not None else None

        def element(*indices: Any) -> Any:
            factor = scale(scales, indices)
            point = zero(zeros, indices)
            constant_point = isinstance(point, tirx.IntImm)
            point = tirx.IntImm("int32", int(point.value)) if constant_point else tirx.Cast("int32", point)
            x = data(*indices)
            inverse = inverse_of(float(factor.value)) if isinstance(factor, tirx.FloatImm) else None
            x = x / factor if inverse is None else x * tirx.FloatImm("float32", inverse)
            least = tirx.Cast("float32", tirx.IntImm("int32", low) - point)
            upper = tirx.Cast("float32", tirx.IntImm("int32", high) - point)
            x = te.min(te.max(x, least), upper)  # in this order, NaN becomes the least level
            if rounded is None:
                return tirx.Cast(dtype, round_to_bits(x, point))
            return tirx.Cast(dtype, tirx.Cast("int32", rounded(x)) + point)

        return te.compute(data.shape, element, name="quantized")

    return builder.call_te(compute, call.args[0], *tensors, primfunc_name_hint="quantize")


def inverse_of(scale: float) -> float | None:
    """1 / scale in float32; None where it has fewer bits, or is infinite."""
    with np.errstate(over="ignore", divide="ignore"):
        inverse = np.float32(1.0) / np.float32(scale)
    return float(inverse) if np.finfo("float32").tiny <= abs(inverse) < np.inf else None


def _default(name: str) -> Any:
    """TVM's own legalisation rule for an operator."""
    return Op.get(name).get_attr("FLegalize")


def einsum(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Legalisation rule for relax.einsum of two tensors, summed over one axis: one plain reduction.

    The code of TVM's own rule, which handles all other cases, does not show which contraction it computes.
    """
    operands = list(call.args[0].fields) if isinstance(call.args[0], relax.Tuple) else []
    inputs, _, result = str(call.attrs.subscripts).replace(" ", "").partition("->")
    axes = inputs.split(",")
    summed = [letter for letter in dict.fromkeys("".join(axes)) if letter not in result]
    distinct = all(len(set(letters)) == len(letters) for letters in [*axes, result])
    if len(operands) != 2 or not result or len(summed) != 1 or not distinct or "." in inputs:
        return _default("relax.einsum")(builder, call)

    def compute(left: Any, right: Any) -> Any:
        sizes = dict(zip(axes[0] + axes[1], [*left.shape, *right.shape], strict=True))
        depth = te.reduce_axis((0, sizes[summed[0]]), name="k")

        def element(*indices: Any) -> Any:
            index = {**dict(zip(result, indices, strict=True)), summed[0]: depth}
            operand_a = left(*(index[letter] for letter in axes[0]))
            operand_b = right(*(index[letter] for letter in axes[1]))
            return te.sum(operand_a * operand_b, axis=depth)

        return te.compute([sizes[letter] for letter in result], element, name="einsum")

    return builder.call_te(compute, *operands, primfunc_name_hint="einsum")


# Legalisation rules by operator name.
RULES = {
    "relax.argmax": arg_extreme(largest=True),
    "relax.argmin": arg_extreme(largest=False),
    "relax.einsum": einsum,
    "relax.image.grid_sample": grid_sample,
    "relax.nn.avg_pool2d": average_pool,
    "relax.quantize": quantize,
    "relax.topk": topk,
    "relax.cumsum": scan_rule(topi.cumsum, operator.add, 0),
    "relax.cumprod": scan_rule(topi.cumprod, operator.mul, 1),
    "relax.vision.roi_align": roi_align,
    "relax.vision.all_class_non_max_suppression": all_class_non_max_suppression,
    **indices.RULES,
    **not_a_number.RULES,
}


def cpu_rules(target: Target | None) -> dict[str, Any]:
    """RULES for the CPU of a target; of None, for one without vectors."""
    has_vectors = target is not None and target.vector.bits > 32
    return {**RULES, "relax.topk": partial(topk, has_vectors=has_vectors)}
