"""Converters of ONNX operators that replace TVM 0.27's, each for the reason in its docstring.

A converter is a function of a node that returns a Relax expression, or None to leave the node to TVM.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import helper
from tvm import relax, tirx

from kiln.extents import Extent
from kiln.frontend.onnx import (
    affine_grid,
    col2im,
    counted_ops,
    data_dependent_sizes,
    einsum,
    elementwise,
    image_ops,
    index_ops,
    ngrams,
    pad,
    pool_indices,
    pools,
    rearrange,
    recurrent,
    reductions,
    sampling,
    shape_ops,
    signal_ops,
    window_pads,
)
from kiln.frontend.onnx.node import Node, part, shape_expr

Converter = Callable[[Node], Any]
_BITS = 6  # of an exponent that makes a difference: an integer other than -1, 0 and 1 overflows after 2**6


def clip(node: Node) -> Any:
    """Clip with bounds that are known at build time, as one relax.clip.

    TVM 0.27 emits two opaque TIR functions (topi.maximum, topi.minimum), which graph passes cannot analyse:
    ReLU6 would be neither recognised nor fused.
    """
    bounds = []
    for index, key, default in ((1, "min", -np.inf), (2, "max", np.inf)):
        if not node.has(index):
            bounds.append(float(node.attributes.get(key, default)))
            continue
        value = node.constant(index)
        if value is None:
            return _clip_by_data(node)
        # A NaN bound is ignored, as in ONNX Runtime.
        bounds.append(default if np.isnan(value.item()) else value.item())
    low, high = min(bounds), bounds[1]  # where the bounds cross, the result is the greatest value
    data = node.tensor(0)
    dtype = str(data.ty.dtype)
    if np.issubdtype(np.dtype(dtype), np.integer):
        info = np.iinfo(dtype)
        if np.isinf(low) and np.isinf(high):
            return data
        low, high = int(max(low, info.min)), int(min(high, info.max))
        if high > np.iinfo("int64").max:  # relax.clip has bounds of int64
            high_bound = relax.const(np.asarray(high, dtype), dtype)
            least = node.builder.emit(relax.op.maximum(data, relax.const(np.asarray(low, dtype), dtype)))
            return least if high == info.max else relax.op.minimum(least, high_bound)
    elif (low, high) == (-np.inf, np.inf):
        return data
    elif low == 0 and np.isinf(high):
        return relax.op.nn.relu(data)
    return relax.op.clip(data, low, high)


def _clip_by_data(node: Node) -> Any:
    """Clip with a bound that is data."""
    result = node.tensor(0)
    for index, bounded in ((1, relax.op.maximum), (2, relax.op.minimum)):
        if node.has(index):
            scalar = node.builder.emit(relax.op.reshape(node.tensor(index), []))
            result = node.builder.emit(bounded(result, scalar))
    return result


def power(node: Node) -> Any:
    """Pow of any types, in the type of the base; TVM 0.27 supports floats of one type only."""
    emit, op, x, y = node.builder.emit, relax.op, node.tensor(0), node.tensor(1)
    dtype, exponent_dtype = str(x.ty.dtype), str(y.ty.dtype)
    if dtype.startswith("int") and exponent_dtype.startswith(("int", "uint")):
        return _integer_power(node, x, y if exponent_dtype == dtype else emit(op.astype(y, dtype)))
    if dtype.startswith(("int", "uint")):
        result = emit(op.power(emit(op.astype(x, "float32")), emit(op.astype(y, "float32"))))
        # Float32 powers are a few units in the last place off, also below a whole number.
        near = emit(op.multiply(result, relax.const(1 + 2.0**-19, "float32")))
        return op.astype(emit(op.trunc(near)), dtype)
    return op.power(x, y if exponent_dtype == dtype else emit(op.astype(y, dtype)))


def _integer_power(node: Node, x: Any, y: Any) -> Any:
    """x**y of integers by squaring, modulo 2**bits; rounded towards zero for negative y."""
    emit, op, dtype = node.builder.emit, relax.op, str(x.ty.dtype)

    def number(value: int) -> Any:
        return relax.const(value, dtype)

    size, result, square = emit(op.abs(y)), number(1), x
    for bit in range(_BITS):
        odd = emit(op.not_equal(op.bitwise_and(size, number(1 << bit)), number(0)))
        result = emit(op.where(odd, op.multiply(result, square), result))
        square = emit(op.multiply(square, square))
    units = emit(op.less_equal(op.abs(x), number(1)))
    inverse = emit(op.where(units, result, number(0)))
    return op.where(op.less(y, number(0)), inverse, result)


def batch_normalization(node: Node) -> Any:
    """BatchNormalization in training mode, by mean and variance of the batch, or of several element types.

    In training mode, returns the running mean and variance as well. TVM 0.27, which converts other nodes,
    ignores the mode, and accepts one type.
    """
    if not node.attributes.get("training_mode", 0):
        dtypes = {str(node.tensor(index).ty.dtype) for index in range(5)}
        return None if len(dtypes) == 1 else _mixed_normalization(node, dtypes)
    emit, op, x = node.builder.emit, relax.op, node.tensor(0)
    scale, bias, mean, variance = (node.tensor(index) for index in range(1, 5))
    momentum, epsilon = (float(node.attributes.get(k, d)) for k, d in (("momentum", 0.9), ("epsilon", 1e-5)))
    rank, dtype = len(node.shape(0)), str(x.ty.dtype)
    inner = "float64" if dtype == "float64" else "float32"
    axes, channel_shape = [axis for axis in range(rank) if axis != 1], [1, -1, *[1] * (rank - 2)]

    def const(value: float, like: Any) -> Any:
        return relax.const(value, str(like.ty.dtype))

    def column(tensor: Any) -> Any:
        wide = tensor if str(tensor.ty.dtype) == inner else emit(op.astype(tensor, inner))
        return emit(op.reshape(wide, channel_shape))

    wide = x if dtype == inner else emit(op.astype(x, inner))
    centre = emit(op.mean(wide, axes))
    centred = emit(op.subtract(wide, column(centre)))
    spread = emit(op.mean(emit(op.multiply(centred, centred)), axes))
    root = emit(op.sqrt(emit(op.add(column(spread), relax.const(epsilon, inner)))))
    y = emit(op.add(op.multiply(op.divide(centred, root), column(scale)), column(bias)))
    running = []
    for before, now in ((mean, centre), (variance, spread)):
        new = now if str(before.ty.dtype) == inner else emit(op.astype(now, str(before.ty.dtype)))
        mixed = op.add(
            op.multiply(before, const(momentum, before)), op.multiply(new, const(1 - momentum, before))
        )
        running.append(emit(mixed))
    return relax.Tuple([y if dtype == inner else emit(op.astype(y, dtype)), *running])


def _mixed_normalization(node: Node, dtypes: set[str]) -> Any:
    """BatchNormalization of operands of several types, computed in the widest one; `dtypes` has all types."""
    emit, op, shape = node.builder.emit, relax.op, node.shape(0)
    wide = "float64" if "float64" in dtypes else "float32"
    x, *columns = (emit(op.astype(node.tensor(index), wide)) for index in range(5))
    channel_shape = [1, -1, *[1] * (len(shape) - 2)]
    scale, bias, mean, variance = (emit(op.reshape(column, channel_shape)) for column in columns)
    epsilon = relax.const(float(node.attributes.get("epsilon", 1e-5)), wide)
    factor = emit(op.divide(scale, emit(op.sqrt(emit(op.add(variance, epsilon))))))
    y = emit(op.add(emit(op.multiply(emit(op.subtract(x, mean)), factor)), bias))
    return op.astype(y, str(node.tensor(0).ty.dtype))


def rms_normalization(node: Node) -> Any:
    """RMSNormalization over all axes, where TVM 0.27's kernel fails; other axes are left to TVM."""
    rank = len(node.shape(0))
    if int(node.attributes.get("axis", -1)) % rank != 0:
        return None
    emit, shape = node.builder.emit, node.shape(0)
    scale = emit(relax.op.broadcast_to(node.tensor(1), shape_expr(shape)))
    rows = emit(relax.op.expand_dims(node.tensor(0), 0))
    epsilon = float(node.attributes.get("epsilon", 1e-5))
    normal = emit(relax.op.nn.rms_norm(rows, scale, list(range(1, rank + 1)), epsilon))
    return relax.op.squeeze(normal, [0])


def layer_normalization(node: Node) -> Any:
    """LayerNormalization that TVM lacks: of float64, over dynamic sizes, with mean and inverse deviation.

    The variance is the mean of squared differences. ONNX's function body subtracts the square of the mean
    from the mean of squares, which cancels digits where the mean is large.
    """
    op, emit, x = relax.op, node.builder.emit, node.tensor(0)
    dtype, rank = str(x.ty.dtype), len(node.shape(0))
    axes = list(range(int(node.attributes.get("axis", -1)) % rank, rank))
    is_fixed = all(isinstance(node.shape(0)[axis], int) for axis in axes)
    if dtype != "float64" and len(node.outputs) == 1 and is_fixed:
        return None
    wide = "float64" if dtype == "float64" else "float32"
    stash = str(helper.tensor_dtype_to_np_dtype(int(node.attributes.get("stash_type", 1))))
    x = x if dtype == wide else emit(op.astype(x, wide))
    mean = emit(op.mean(x, axes, keepdims=True))
    difference = emit(op.subtract(x, mean))
    variance = emit(op.mean(emit(op.multiply(difference, difference)), axes, keepdims=True))
    epsilon = relax.const(float(node.attributes.get("epsilon", 1e-5)), wide)
    inverse = emit(op.divide(relax.const(1.0, wide), emit(op.sqrt(emit(op.add(variance, epsilon))))))
    result = emit(op.multiply(difference, inverse))
    result = result if dtype == wide else emit(op.astype(result, dtype))
    result = emit(op.multiply(result, node.tensor(1)))
    if node.has(2):
        result = emit(op.add(result, node.tensor(2)))
    return relax.Tuple(
        [result, *(emit(op.astype(statistic, stash)) for statistic in (mean, inverse))][: len(node.outputs)]
    )


def one_hot(node: Node) -> Any:
    """OneHot in the type of its values; TVM 0.27 converts every floating-point type to float64."""
    values, depth_known = node.constant(2), node.elements(1)
    if values is None or depth_known is None or not isinstance(depth_known[0], int):
        return data_dependent_sizes.one_hot(node)
    depth = depth_known[0]
    dtype = str(values.dtype)
    off, on = (relax.prim_value(tirx.const(value, dtype)) for value in values.reshape(-1).tolist())
    indices = relax.op.astype(node.tensor(0), "int64")
    wrapped = relax.op.add(indices, relax.const(depth, "int64"))
    indices = relax.op.where(relax.op.less(indices, relax.const(0, "int64")), wrapped, indices)
    return relax.op.one_hot(indices, on, off, depth, int(node.attributes.get("axis", -1)))


def split(node: Node) -> Any:
    """Split of a dynamic size, into parts of dynamic sizes, sizes of the run or of none; else TVM's own."""
    size = node.shape(0)[int(node.attributes.get("axis", 0))]
    split = node.constant(1) if node.has(1) else node.attributes.get("split")
    if split is not None and 0 in list(split) and any(split):
        return _split_at_sizes(node, [int(number) for number in split])
    if not node.has(1) or (node.constant(1) is not None and isinstance(size, int)):
        return None
    sizes = node.elements(1)
    return data_dependent_sizes.split(node) if sizes is None else _split_at_sizes(node, sizes)


def _split_at_sizes(node: Node, sizes: list[Extent]) -> Any:
    """Parts of an axis, whose `sizes` depend on dimensions. Raises ValueError if they do not fill it."""
    shape, symbols = node.shape(0), node.symbols
    axis = int(node.attributes.get("axis", 0)) % len(shape)
    ends: list[Extent] = [0]
    for size in sizes:
        ends.append(symbols.simplify(ends[-1] + size))
    wrong = symbols.differing(ends[-1], shape[axis], ones=True)
    for size in sizes:
        wrong = wrong or symbols.differing(size, shape_ops.larger(size, 0), ones=True)
    if wrong is not None:
        at = ", ".join(f"{name} = {value}" for name, value in wrong.items())
        parts = ", ".join(map(str, sizes))
        raise ValueError(f"parts of {parts} do not fill axis {axis}, of {shape[axis]}, with {at}")
    data = node.tensor(0)
    return relax.Tuple([part(data, axis, *limits) for limits in itertools.pairwise(ends)])


OVERRIDES: dict[str, Converter] = {
    "BatchNormalization": batch_normalization,
    "CenterCropPad": data_dependent_sizes.center_crop_pad,
    "Clip": clip,
    "Einsum": einsum.einsum,
    "LayerNormalization": layer_normalization,
    "OneHot": one_hot,
    "Pad": pad.pad,
    "Pow": power,
    "RMSNormalization": rms_normalization,
    "Split": split,
    **affine_grid.CONVERTERS,
    **col2im.CONVERTERS,
    **counted_ops.CONVERTERS,
    **elementwise.CONVERTERS,
    **image_ops.CONVERTERS,
    **index_ops.CONVERTERS,
    **ngrams.CONVERTERS,
    **pool_indices.CONVERTERS,
    **pools.CONVERTERS,
    **rearrange.CONVERTERS,
    **recurrent.CONVERTERS,
    **reductions.CONVERTERS,
    **sampling.CONVERTERS,
    **shape_ops.CONVERTERS,
    **signal_ops.CONVERTERS,
    **window_pads.CONVERTERS,
}
