"""Converters of elementwise ONNX operators that TVM 0.27 converts for some attributes or element types only.

Converters have the interface of kiln.frontend.onnx.ops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import helper
from tvm import DataType, relax

from kiln.frontend.float_remainder import float_floor_mod
from kiln.frontend.onnx.node import Node, prims, shape_expr

op = relax.op


def _dtype(tensor: Any) -> str:
    return str(tensor.ty.dtype)


def cast(node: Node) -> Any:
    """Cast; a float becomes an integer of 8 or 16 bits through the low bits of an int32, as in ONNX Runtime.

    TVM's conversion takes several times as long: it computes the remainder for numbers out of range, and 0
    for infinities and NaN. Here, a number that does not fit int32 becomes whatever the processor's conversion
    returns.
    """
    return converted(node, helper.tensor_dtype_to_np_dtype(int(node.attributes["to"])).name)


def cast_like(node: Node) -> Any:
    """CastLike: Cast to the type of the second input."""
    return converted(node, _dtype(node.tensor(1)))


def converted(node: Node, dtype: str) -> Any:
    """The first input as `dtype`."""
    x = node.tensor(0)
    if dtype == "bool":
        return op.not_equal(x, relax.const(0, _dtype(x))) if _dtype(x) != "bool" else x
    if "float" in _dtype(x) and dtype in ("int8", "uint8", "int16", "uint16"):
        x = node.builder.emit(op.astype(x, "int32"))
    return op.astype(x, dtype)


def is_inf(node: Node) -> Any:
    """IsInf with `detect_positive` and `detect_negative`, which TVM ignores."""
    x, dtype = node.tensor(0), _dtype(node.tensor(0))
    positive = bool(node.attributes.get("detect_positive", 1))
    negative = bool(node.attributes.get("detect_negative", 1))
    infinite, zero = op.isinf(x), relax.const(0, dtype)
    if positive and negative:
        return infinite
    if not positive and not negative:
        return op.full(shape_expr(node.shape(0)), relax.const(False, "bool"), "bool")
    return op.logical_and(infinite, op.greater(x, zero) if positive else op.less(x, zero))


def mod(node: Node) -> Any:
    """Mod: the sign of the divisor, or of the dividend with `fmod`; of floats exact."""
    x, y, dtype = node.tensor(0), node.tensor(1), _dtype(node.tensor(0))
    as_dividend = bool(node.attributes.get("fmod", 0))
    if not dtype.startswith(("float", "bfloat")):
        return op.mod(x, y) if as_dividend else op.floor_mod(x, y)
    wide = dtype if dtype in ("float32", "float64") else "float32"
    emit = node.builder.emit
    a, b = (operand if dtype == wide else emit(op.astype(operand, wide)) for operand in (x, y))
    rest = emit(op.mod(a, b)) if as_dividend else float_floor_mod(emit, a, b)
    return rest if dtype == wide else op.astype(rest, dtype)


def bit_shift(node: Node) -> Any:
    """BitShift, which shifts all bits out for a count that is negative or at least the number of bits."""
    x, count, dtype = node.tensor(0), node.tensor(1), _dtype(node.tensor(0))
    direction = node.attributes["direction"]
    right = (direction.decode() if isinstance(direction, bytes) else str(direction)) == "RIGHT"
    most, signed = DataType(dtype).bits - 1, dtype.startswith("int")
    emit = node.builder.emit
    beyond = emit(op.greater(count, relax.const(most, dtype)))
    if signed:
        beyond = emit(op.logical_or(beyond, op.less(count, relax.const(0, dtype))))
    inside = emit(op.where(beyond, relax.const(most, dtype), count))
    shifted = emit((op.right_shift if right else op.left_shift)(x, inside))
    return shifted if right and signed else op.where(beyond, relax.const(0, dtype), shifted)


def dropout(node: Node) -> Any:
    """Dropout in inference: the tensor itself and a mask that keeps all. Training with a ratio is refused."""
    x = node.tensor(0)
    training = node.constant(2) if node.has(2) else np.array(False)
    ratio = node.constant(1) if node.has(1) else np.array(node.attributes.get("ratio", 0.5))
    random = ratio is None or bool(ratio.item())
    if random and (training is None or bool(training.item())):
        why = (
            "is true" if training is not None else f"('{node.inputs[2]}') is not known before the model runs"
        )
        raise ValueError(f"its input training_mode {why}, allowed: false; export the model for inference")
    return relax.Tuple([x, op.full(shape_expr(node.shape(0)), relax.const(True, "bool"), "bool")])


def thresholded_relu(node: Node) -> Any:
    """ThresholdedRelu in the type of its input, which TVM multiplies by float32."""
    x, dtype = node.tensor(0), _dtype(node.tensor(0))
    alpha = relax.const(float(node.attributes.get("alpha", 1.0)), dtype)
    return op.where(op.greater(x, alpha), x, relax.const(0.0, dtype))


def celu(node: Node) -> Any:
    """Celu: max(0, x) + min(0, alpha (e^(x / alpha) - 1)). ONNX's function body makes vectors of scalars."""
    x, dtype, emit = node.tensor(0), _dtype(node.tensor(0)), node.builder.emit
    alpha = relax.const(float(node.attributes.get("alpha", 1.0)), dtype)
    zero, unit = relax.const(0.0, dtype), relax.const(1.0, dtype)
    curve = op.multiply(alpha, op.subtract(emit(op.exp(emit(op.divide(x, alpha)))), unit))
    return op.add(op.maximum(x, zero), op.minimum(emit(curve), zero))


def _exponential_below_zero(alpha: float, gamma: float) -> Callable[[Node], Any]:
    """Converter of Elu or Selu of float64, which TVM multiplies by float32.

    The result is `gamma` x above 0, and `gamma` `alpha` (e^x - 1) below. The two have defaults.
    """

    def converter(node: Node) -> Any:
        x, emit = node.tensor(0), node.builder.emit
        if _dtype(x) != "float64":
            return None
        scale = float(node.attributes.get("gamma", gamma))
        above, below = (
            relax.const(factor, "float64")
            for factor in (scale, -scale * float(node.attributes.get("alpha", alpha)))
        )
        curve = emit(op.nn.relu(emit(op.subtract(relax.const(1.0, "float64"), op.exp(x)))))
        return op.add(op.multiply(below, curve), op.multiply(above, emit(op.nn.relu(x))))

    return converter


def sign(node: Node) -> Any:
    """Sign of unsigned integers, which TVM 0.27 compares with -1."""
    x, dtype = node.tensor(0), _dtype(node.tensor(0))
    return op.minimum(x, relax.const(1, dtype)) if dtype.startswith("uint") else None


def equal(node: Node) -> Any:
    """Equal of booleans, which TVM 0.27 compares as one-bit integers, a type that LLVM then rejects."""
    if _dtype(node.tensor(0)) != "bool":
        return None
    return op.logical_not(op.logical_xor(node.tensor(0), node.tensor(1)))


def shrink(node: Node) -> Any:
    """Shrink of integers, towards zero; TVM 0.27 rounds the attributes to integers first."""
    x, dtype, emit = node.tensor(0), _dtype(node.tensor(0)), node.builder.emit
    if dtype.startswith("float"):
        return None
    limit, bias = (float(node.attributes.get(key, usual)) for key, usual in (("lambd", 0.5), ("bias", 0.0)))
    inner = "float32" if DataType(dtype).bits <= 16 else "float64"
    wide = emit(op.astype(x, inner))
    below = op.where(
        op.less(wide, relax.const(-limit, inner)),
        op.add(wide, relax.const(bias, inner)), relax.const(0.0, inner),
    )  # fmt: skip
    above = op.greater(wide, relax.const(limit, inner))
    shrunk = op.where(above, op.subtract(wide, relax.const(bias, inner)), below)
    return op.astype(emit(shrunk), dtype)


def _cumulative(function: Callable[..., Any]) -> Callable[[Node], Any]:
    """Converter of CumSum or CumProd. An axis known only at run time chooses among results for all axes."""

    def along(node: Node, axis: int) -> Any:
        emit, x = node.builder.emit, node.tensor(0)
        reverse, dtype = bool(node.attributes.get("reverse", 0)), _dtype(node.tensor(0))
        turned = emit(op.flip(x, axis)) if reverse else x
        sums = emit(function(turned, axis, dtype, exclusive=bool(node.attributes.get("exclusive", 0))))
        return emit(op.flip(sums, axis)) if reverse else sums

    def converter(node: Node) -> Any:
        rank, axis = len(node.shape(0)), node.constant(1)
        if axis is not None or rank == 1:
            return along(node, 0 if axis is None else int(axis.item()) % rank)
        emit, run_axis = node.builder.emit, node.builder.emit(op.reshape(node.tensor(1), []))
        dtype, result = _dtype(run_axis), along(node, 0)
        for number in range(1, rank):
            here = [
                op.equal(run_axis, relax.const(axis_number, dtype)) for axis_number in (number, number - rank)
            ]
            result = emit(op.where(emit(op.logical_or(*here)), along(node, number), result))
        return result

    return converter


def prelu(node: Node) -> Any:
    """PRelu with slopes of every shape that fits; TVM rejects slopes along an axis of dynamic size.

    One constant slope is a LeakyRelu, whose slope the kernels know.
    """
    x, slope, dtype = node.tensor(0), node.tensor(1), _dtype(node.tensor(0))
    rank, sizes, constant = len(node.shape(0)), node.shape(1), node.constant(1)
    if node.opset < 7 and len(sizes) == 1 and rank > 2:  # the slopes of the channels
        sizes = [*sizes, *[1] * (rank - 2)]
        slope = node.builder.emit(op.reshape(slope, shape_expr(sizes)))
    if constant is not None and constant.size == 1 and dtype.startswith("float"):
        return op.nn.leakyrelu(x, float(constant.reshape(-1)[0]))
    varying = [axis for axis, size in enumerate(sizes) if size != 1]
    if len(varying) == 1 and isinstance(sizes[varying[0]], int) and dtype.startswith("float"):
        axis = rank - len(sizes) + varying[0]
        if node.shape(0)[axis] == sizes[varying[0]]:
            return op.nn.prelu(x, op.reshape(slope, [sizes[varying[0]]]), axis)
    return op.where(op.less(x, relax.const(0, dtype)), op.multiply(x, slope), x)


def erf(node: Node) -> Any:
    """Erf; of integers, as in operator set 9, without the fraction: 0, or 1 and -1 far from 0."""
    x, dtype = node.tensor(0), _dtype(node.tensor(0))
    if "float" in dtype:
        return op.erf(x)
    values = node.builder.emit(op.astype(x, "float64"))
    return op.astype(node.builder.emit(op.erf(values)), dtype)


def eye_like(node: Node) -> Any:
    """EyeLike in the type of `dtype`; TVM's operator computes int32, whatever type it states."""
    number = node.attributes.get("dtype")
    dtype = _dtype(node.tensor(0)) if number is None else str(helper.tensor_dtype_to_np_dtype(number))
    emit, (rows, columns) = node.builder.emit, node.shape(0)
    row, column = (emit(op.arange(*prims([0, size, 1]), "int64")) for size in (rows, columns))
    shifted = emit(op.add(row, relax.const(int(node.attributes.get("k", 0)), "int64")))
    return op.astype(emit(op.equal(op.expand_dims(shifted, 1), op.expand_dims(column, 0))), dtype)


def lp_normalization(node: Node) -> Any:
    """LpNormalization: x / |x| along an axis, 0 where |x| is 0. TVM 0.27 lacks it."""
    emit, x, axis = node.builder.emit, node.tensor(0), int(node.attributes.get("axis", -1))
    if int(node.attributes.get("p", 2)) == 1:
        size = emit(op.sum(op.abs(x), axis, keepdims=True))
    else:
        size = emit(op.sqrt(op.sum(op.multiply(x, x), axis, keepdims=True)))
    zero = relax.const(0.0, _dtype(x))
    return op.where(op.equal(size, zero), zero, op.divide(x, size))


def _pairwise(function: Callable[[Any, Any], Any], mean: bool = False) -> Callable[[Node], Any]:
    """Converter of Max, Min, Sum or Mean: `function` of operand after operand; TVM stacks all operands."""

    def converter(node: Node) -> Any:
        result = node.tensor(0)
        for index in range(1, len(node.inputs)):
            result = function(result, node.tensor(index))
        return op.divide(result, relax.const(len(node.inputs), _dtype(node.tensor(0)))) if mean else result

    return converter


CONVERTERS: dict[str, Callable[[Node], Any]] = {
    "BitShift": bit_shift,
    "Cast": cast,
    "CastLike": cast_like,
    "Celu": celu,
    "CumProd": _cumulative(op.cumprod),
    "CumSum": _cumulative(op.cumsum),
    "Dropout": dropout,
    "Elu": _exponential_below_zero(1.0, 1.0),
    "Equal": equal,
    "Erf": erf,
    "EyeLike": eye_like,
    "IsInf": is_inf,
    "LpNormalization": lp_normalization,
    "Max": _pairwise(op.maximum),
    "Mean": _pairwise(op.add, mean=True),
    "Min": _pairwise(op.minimum),
    "Mod": mod,
    "PRelu": prelu,
    "Selu": _exponential_below_zero(1.67326319217681884765625, 1.05070102214813232421875),
    "Shrink": shrink,
    "Sign": sign,
    "Sum": _pairwise(op.add),
    "ThresholdedRelu": thresholded_relu,
}
