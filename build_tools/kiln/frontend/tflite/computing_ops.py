"""Converters of TFLite operators that compute, which TVM 0.27 lacks, refuses or converts wrongly.

Quantised operands become real numbers and the result is quantised again, as for all other operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from kiln.frontend.float_remainder import float_floor_mod
from kiln.frontend.fourier import transform
from kiln.frontend.tflite.angles import angle_of
from kiln.frontend.tflite.int16_products import int16_matmul
from kiln.frontend.tflite.operands import Grid, TfliteOperands, const

op = relax.op
_RANDOM = "its result is drawn at random: draw it outside, and pass it as an input"
_TABLE = "it looks values up by keys of a table: look them up outside, and pass indices as an input"


def _float(value: float) -> Any:
    return const(value, "float32")


def batch_matmul(node: TfliteOperands) -> Any:
    """BATCH_MATMUL of any two ranks; TVM 0.27 refuses constants, and loses a shape where batches differ."""
    if node.result_dtype() == "int32":
        raise ValueError(f"of {node.dtype(0)} to int32, allowed: the type of its operands")
    options = node.options("BatchMatMulOptions")
    is_int16 = all(grid is not None and (grid.dtype, grid.zero) == ("int16", 0) for grid in _grids(node))
    x, y = (node.raw(index) if is_int16 else node.real(index) for index in (0, 1))
    if options.AdjX():
        x = node.emit(op.permute_dims(x, _last_axes_swapped(len(x.ty.shape))))
    if options.AdjY():
        y = node.emit(op.permute_dims(y, _last_axes_swapped(len(y.ty.shape))))
    return int16_matmul(node, x, y) if is_int16 else node.store(op.matmul(x, y))


def _grids(node: TfliteOperands) -> list[Grid | None]:
    """The quantisation of two operands and the result."""
    return [node.grid(0), node.grid(1), node.result_grid()]


def _last_axes_swapped(rank: int) -> list[int]:
    return [*range(rank - 2), rank - 1, rank - 2]


def gelu(node: TfliteOperands) -> Any:
    """GELU of quantised tensors too."""
    x = node.real(0)
    return node.store(op.nn.gelu_tanh(x) if node.options("GeluOptions").Approximate() else op.nn.gelu(x))


def l2_normalization(node: TfliteOperands) -> Any:
    """L2_NORMALIZATION along the last axis, of quantised tensors too."""
    x = node.real(0)
    squares = node.emit(op.sum(node.emit(op.multiply(x, x)), -1, keepdims=True))
    return node.store(op.divide(x, op.sqrt(op.maximum(squares, _float(1e-12)))))


def prelu(node: TfliteOperands) -> Any:
    """PRELU of any slopes and of quantised tensors; TVM 0.27 expands the slopes to the activations' shape."""
    last = node.shape(0)[-1:]
    if node.inputs[0].qnn_params is None and last and node.shape(1) == [1] * (len(node.shape(1)) - 1) + last:
        slopes = node.emit(op.reshape(node.raw(1), last))
        return op.nn.prelu(node.raw(0), slopes, axis=len(node.shape(0)) - 1)
    x = node.real(0)
    return node.store(op.where(op.greater_equal(x, _float(0)), x, op.multiply(node.real(1), x)))


def elu(node: TfliteOperands) -> Any:
    """ELU, also of quantised tensors, and of NaN, which TVM 0.27 turns into 0."""
    x = node.real(0)
    return node.store(op.where(op.less(x, _float(0)), op.subtract(op.exp(x), _float(1)), x))


def sign(node: TfliteOperands) -> Any:
    """SIGN, also of NaN, which TVM 0.27 turns into 0; TVM's own rule for other types than float32."""
    if node.dtype(0) != "float32":
        return None
    x = node.raw(0)
    below = op.where(op.less(x, _float(0)), _float(-1), x)
    return op.where(op.greater(x, _float(0)), _float(1), below)


def relu_0_to_1(node: TfliteOperands) -> Any:
    """RELU_0_TO_1 of quantised tensors too."""
    return node.store(op.clip(node.real(0), 0, 1))


def power(node: TfliteOperands) -> Any:
    """POW of integers by squaring; of floats left to TVM."""
    dtype = node.dtype(0)
    if not dtype.startswith("int"):
        return None
    x, y, power_so_far = node.raw(0), node.raw(1), const(1, dtype)
    for bit in range(6):  # an integer other than -1, 0 and 1 overflows after 2**6
        odd = node.emit(op.not_equal(op.bitwise_and(y, const(1 << bit, dtype)), const(0, dtype)))
        power_so_far = node.emit(op.where(odd, op.multiply(power_so_far, x), power_so_far))
        x = node.emit(op.multiply(x, x))
    return power_so_far


def squared_difference(node: TfliteOperands) -> Any:
    """SQUARED_DIFFERENCE of integers; of other types left to TVM."""
    if node.inputs[0].qnn_params is not None or node.dtype(0).startswith("float"):
        return None
    difference = node.emit(op.subtract(node.raw(0), node.raw(1)))
    return op.multiply(difference, difference)


def atan2(node: TfliteOperands) -> Any:
    """ATAN2 of equal shapes."""
    if node.shape(0) != node.shape(1):
        raise ValueError(f"operands of {node.shape(0)} and {node.shape(1)}, allowed: equal shapes")
    return angle_of(node.raw(0), node.raw(1))


def logic_of_bool(operator: Any) -> Callable[[TfliteOperands], Any]:
    """A converter of StableHLO's arithmetic on bool, which is logic; other types are left to TVM."""

    def convert(node: TfliteOperands) -> Any:
        return operator(node.raw(0), node.raw(1)) if node.dtype(0) == "bool" else None

    return convert


def arg_reduction(operator: Any) -> Callable[[TfliteOperands], Any]:
    """A converter of ARG_MAX or ARG_MIN in the type of the output, which TVM 0.27 ignores."""

    def convert(node: TfliteOperands) -> Any:
        data = node.raw(0)
        if node.dtype(0) == "bool":
            data = node.emit(op.astype(data, "int8"))
        axis = int(node.constant_array(1).reshape(-1)[0])
        return op.astype(node.emit(operator(data, axis)), node.result_dtype())

    return convert


def mean(node: TfliteOperands) -> Any:
    """MEAN of integers without quantisation, rounded towards zero; of other types left to TVM."""
    if node.inputs[0].qnn_params is not None or not node.dtype(0).startswith("int"):
        return None
    axes = [int(axis) for axis in node.constant_array(1).reshape(-1)]
    shape = node.shape(0)
    count = math.prod(shape[axis] for axis in {axis % len(shape) for axis in axes})
    keep = bool(node.options("ReducerOptions").KeepDims())
    sums = node.emit(op.sum(node.emit(op.astype(node.raw(0), "int64")), axes, keepdims=keep))
    quotients = op.multiply(op.sign(sums), op.floor_divide(op.abs(sums), const(count, "int64")))
    return op.astype(node.emit(quotients), node.result_dtype())


def reduction(operator: Any, otherwise: Callable[[TfliteOperands], Any] | None = None) -> Any:
    """A converter of a reduction over no axes, which TVM 0.27 compiles to reads outside of the tensor.

    Other reductions are converted by `otherwise`, or left to TVM.

    REDUCE_MAX and REDUCE_MIN of tensors of two scales reduce the integers, as in LiteRT.
    """

    def convert(node: TfliteOperands) -> Any:
        axes, quantised = node.constant_array(1).reshape(-1), node.inputs[0].qnn_params is not None
        if not axes.size:
            return node.store(node.real(0)) if quantised else node.raw(0)
        if operator in (op.max, op.min) and quantised and node.grid(0) != node.result_grid():
            keep = bool(node.options("ReducerOptions").KeepDims())
            rank = len(node.shape(0))
            return operator(node.raw(0), sorted({int(axis) % rank for axis in axes}), keepdims=keep)
        return None if otherwise is None else otherwise(node)

    return convert


def check_equal_scales(node: TfliteOperands) -> Any:
    """MAXIMUM and MINIMUM, left to TVM; of two scales LiteRT compares the integers, which is refused."""
    node.check_same_quantisation(0, 1)


def floor_mod(node: TfliteOperands) -> Any:
    """FLOOR_MOD: exact of floats; of integers as stored, as LiteRT ignores their quantisation."""
    x, y = node.raw(0), node.raw(1)
    return float_floor_mod(node.emit, x, y) if node.dtype(0).startswith("float") else op.floor_mod(x, y)


def floor_div(node: TfliteOperands) -> Any:
    """FLOOR_DIV of integers as stored, as LiteRT ignores their quantisation; of floats left to TVM."""
    return None if node.dtype(0).startswith("float") else op.floor_divide(node.raw(0), node.raw(1))


def refusal(reason: str) -> Callable[[TfliteOperands], Any]:
    """A converter of an operator that cannot be converted."""

    def convert(_node: TfliteOperands) -> Any:
        raise ValueError(reason)

    return convert


def rfft2d(node: TfliteOperands) -> Any:
    """RFFT2D as matmuls with matrices of the transform; the last axis of the result: real, imaginary.

    TVM 0.27's form reaches no kernel, and refuses lengths other than the input's.
    """
    rows, columns = (int(n) for n in node.constant_array(1).reshape(-1))
    data, shape = node.raw(0), node.shape(0)
    missing = [max(length - size, 0) for length, size in zip((rows, columns), shape[-2:], strict=True)]
    rank = len(shape)
    data = node.emit(op.strided_slice(data, [rank - 2, rank - 1], [0, 0], [rows, columns]))
    if any(missing):
        data = node.emit(op.nn.pad(data, [*[0] * 2 * (rank - 2), 0, missing[0], 0, missing[1]]))
    if rows == 1:  # a line of samples, such as a frame of a sound
        outer = [*shape[:-2], 1]
        samples = node.emit(op.reshape(data, [*outer, columns, 1]))
        return transform(node.emit, samples, outer, (columns, 1), columns, columns // 2 + 1)

    def waves(size: int, count: int) -> tuple[Any, Any]:
        """cos and -sin of 2 pi i k / size, for each i below `size` and k below `count`."""
        angles = 2 * np.pi * (np.outer(np.arange(size), np.arange(count)) % size) / size
        return const(np.cos(angles), "float32"), const(-np.sin(angles), "float32")

    cosine, sine = waves(columns, columns // 2 + 1)
    a, b = node.emit(op.matmul(data, cosine)), node.emit(op.matmul(data, sine))
    cosine, sine = waves(rows, rows)
    real = op.subtract(op.matmul(cosine, a), op.matmul(sine, b))
    imaginary = op.add(op.matmul(cosine, b), op.matmul(sine, a))
    return op.stack([node.emit(real), node.emit(imaginary)], axis=-1)


def local_response_normalization(node: TfliteOperands) -> Any:
    """LOCAL_RESPONSE_NORMALIZATION by the sum of squares of 2 * radius + 1 channels, not their mean."""
    options, x = node.options("LocalResponseNormalizationOptions"), node.raw(0)
    radius, channels = int(options.Radius()), node.shape(0)[-1]
    rank = len(node.shape(0))
    squares = node.emit(op.multiply(x, x))
    band = np.abs(np.subtract.outer(np.arange(channels), np.arange(channels))) <= radius
    sums = node.emit(op.matmul(squares, const(band, "float32")))
    scale = op.add(_float(options.Bias()), op.multiply(_float(options.Alpha()), sums))
    return op.multiply(x, op.power(node.emit(scale), _float(-options.Beta()))) if rank else x


def bucketize(node: TfliteOperands) -> Any:
    """BUCKETIZE: for each element, the number of boundaries that are not above it."""
    options = node.options("BucketizeOptions")
    edges = np.array([options.Boundaries(index) for index in range(options.BoundariesLength())])
    x = node.emit(op.expand_dims(node.emit(op.astype(node.raw(0), "float32")), -1))
    is_reached = node.emit(op.astype(node.emit(op.greater_equal(x, const(edges, "float32"))), "int32"))
    return op.sum(is_reached, -1)


def _segments(name: str) -> Callable[[TfliteOperands], Any]:
    def convert(node: TfliteOperands) -> Any:
        """The reduction of the rows with each id; rows with a negative id count nowhere."""
        dtype, shape = node.dtype(0), node.shape(0)
        axes, segments = len(node.shape(1)), node.result_shape()[0]
        count = math.prod(node.shape(1))
        info = np.finfo(dtype) if dtype.startswith("float") else np.iinfo(dtype)
        neutral = {"SUM": 0, "PROD": 1, "MAX": info.min, "MIN": info.max}[name]
        reduce = {"SUM": op.sum, "PROD": op.prod, "MAX": op.max, "MIN": op.min}[name]
        rest = math.prod(shape[axes:])
        rows = node.emit(op.reshape(node.raw(0), [1, count, rest]))
        ids = node.emit(op.astype(node.emit(op.reshape(node.raw(1), [1, count, 1])), "int64"))
        chosen = op.equal(ids, const(np.arange(segments).reshape(-1, 1, 1), "int64"))
        rows_in_segment = node.emit(op.where(node.emit(chosen), rows, const(neutral, dtype)))
        return op.reshape(node.emit(reduce(rows_in_segment, 1)), node.result_shape())

    return convert


def embedding_lookup(node: TfliteOperands) -> Any:
    """EMBEDDING_LOOKUP in a quantised table; a table of real numbers is left to another converter."""
    if node.inputs[1].qnn_params is None:
        return None
    indices = node.emit(op.astype(node.raw(0), "int64"))
    if node.result_dtype() != "float32":
        node.check_same_quantisation(1, 1)
        return op.take(node.raw(1), indices, 0)
    if np.asarray(node.inputs[1].qnn_params["scale"].value.numpy()).size > 1:  # of each row
        return op.take(node.real(1), indices, 0)
    rows = node.emit(op.take(node.raw(1), indices, 0))
    return op.reshape(node.emit(node.dequantised(rows, 1)), node.result_shape())


def quantize(node: TfliteOperands) -> Any:
    """QUANTIZE of int16 to int32, in 64-bit integers: float32 cannot hold the results.

    TVM converts other types.

    A value is multiplied by the ratio of the scales, of 31 bits, with one rounding.
    """
    source, result = node.grid(0), node.result_grid()
    if source is None or result is None or (source.dtype, result.dtype) != ("int16", "int32"):
        return None
    mantissa, exponent = math.frexp(source.scale / result.scale)
    shift = 31 - exponent
    if not 1 <= shift <= 62:
        raise ValueError(
            f"scales {source.scale:g} and {result.scale:g}, allowed: those of int16 and int32 with a ratio "
            "of 2^-31 to 2^30"
        )
    levels = node.bind(op.subtract(node.bind(op.astype(node.raw(0), "int64")), const(source.zero, "int64")))
    scaled = node.bind(op.multiply(levels, const(round(mantissa * 2**31), "int64")))
    rounded = node.bind(op.add(scaled, const((1 << (shift - 1)) + (result.zero << shift), "int64")))
    stored = node.bind(op.right_shift(rounded, const(shift, "int64")))
    return op.astype(node.bind(op.clip(stored, -(2**31), 2**31 - 1)), "int32")


CONVERTERS: dict[str, Callable[[TfliteOperands], Any]] = {
    "ARG_MAX": arg_reduction(op.argmax),
    "ARG_MIN": arg_reduction(op.argmin),
    "ATAN2": atan2,
    "BATCH_MATMUL": batch_matmul,
    "BUCKETIZE": bucketize,
    "EMBEDDING_LOOKUP": embedding_lookup,
    "ELU": elu,
    "FLOOR_DIV": floor_div,
    "FLOOR_MOD": floor_mod,
    "GELU": gelu,
    "L2_NORMALIZATION": l2_normalization,
    "LOCAL_RESPONSE_NORMALIZATION": local_response_normalization,
    "MEAN": reduction(op.mean, mean),
    "MAXIMUM": check_equal_scales,
    "MINIMUM": check_equal_scales,
    "POW": power,
    "PRELU": prelu,
    "QUANTIZE": quantize,
    "REDUCE_ALL": reduction(op.min),
    "REDUCE_ANY": reduction(op.max),
    "REDUCE_MAX": reduction(op.max),
    "REDUCE_MIN": reduction(op.min),
    "REDUCE_PROD": reduction(op.prod),
    "RELU_0_TO_1": relu_0_to_1,
    "RFFT2D": rfft2d,
    "SIGN": sign,
    "SQUARED_DIFFERENCE": squared_difference,
    "SUM": reduction(op.sum),
    "STABLEHLO_ADD": logic_of_bool(op.logical_or),
    "STABLEHLO_MAXIMUM": logic_of_bool(op.logical_or),
    "STABLEHLO_MINIMUM": logic_of_bool(op.logical_and),
    "STABLEHLO_MULTIPLY": logic_of_bool(op.logical_and),
    **dict.fromkeys(("MULTINOMIAL", "RANDOM_STANDARD_NORMAL", "RANDOM_UNIFORM"), refusal(_RANDOM)),
    **dict.fromkeys(("HASHTABLE", "HASHTABLE_FIND", "HASHTABLE_IMPORT", "HASHTABLE_SIZE"), refusal(_TABLE)),
    **dict.fromkeys(("HASHTABLE_LOOKUP",), refusal(_TABLE)),
    **{f"UNSORTED_SEGMENT_{name}": _segments(name) for name in ("SUM", "PROD", "MAX", "MIN")},
}
