"""ConvInteger: convolution of 8-bit tensors with int32 sums; matmuls: kiln.frontend.onnx.integer_ops."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax

from kiln.arrays import Array
from kiln.frontend.onnx.body import Body, Expansion
from kiln.frontend.onnx.integer_ops import signed_weights
from kiln.frontend.onnx.quantise_ops import check_zero_point
from kiln.frontend.onnx.window_pads import VaryingFrame, pads_and_varying_axes

op = relax.op
_CONVOLUTIONS = {
    3: (op.nn.conv1d, "NCW", "OIW"),
    4: (op.nn.conv2d, "NCHW", "OIHW"),
    5: (op.nn.conv3d, "NCDHW", "OIDHW"),
}


def _padding(
    body: Body, data: str, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[list[int], VaryingFrame | None]:
    """Padding before and after each spatial axis: [before, …, after, …]; and that in amounts of the run."""
    mode = body.attribute("auto_pad", "NOTSET")
    pads = list(body.attribute("pads", [0] * (2 * len(kernel))))
    if mode == "VALID":
        return [0] * (2 * len(kernel)), None
    if mode == "NOTSET":
        return pads, None
    windows = list(zip(body.shape(data)[2:], kernel, strides, dilations, strict=True))
    pads, varying = pads_and_varying_axes(mode, windows, body.symbols)
    return pads, VaryingFrame.of(mode, windows, varying) if varying else None


def _broadcast_to_result(value: Any, rank: int) -> Any:
    """A zero point of output channels, scalar or vector, in a shape that broadcasts against the result."""
    sizes = [int(size) for size in value.ty.shape]
    return op.reshape(value, [] if all(size == 1 for size in sizes) else [1, *sizes] + [1] * (rank - 2))


def _surrounded(body: Body, data: str, widths: list[int], level: str) -> Any:
    """The tensor `data` with `widths` elements before and after each axis, of the level `level`; empty: 0."""
    image = body.tensor(data)
    if not any(widths):
        return image
    known = body.constant(level) if level else np.zeros(1)
    if known is not None:
        return body.bind_tensor(op.nn.pad(image, widths, "constant", float(known.item())))
    # A level of the run: the distances from it get a frame of zeros.
    point = op.reshape(op.astype(body.tensor(level), "int16"), [])
    distances = op.nn.pad(op.subtract(op.astype(image, "int16"), point), widths)
    return body.bind_tensor(op.astype(op.add(distances, point), body.dtype(data)))


def conv_integer(body: Body) -> list[str]:
    """ConvInteger: sum over the window of (x - x_zero_point) (w - w_zero_point); padding counts as 0.

    With constant weights, the image gets a frame of the level x_zero_point. What the zero points then add to
    the sums of products is one number for a channel, and the sums of the windows, for weights with one.
    """
    data, kernel, x_zero, w_zero = (body.input(index) for index in range(4))
    rank = body.rank(data)
    if rank not in _CONVOLUTIONS:
        raise ValueError(f"its input has {rank} axes, allowed: 3, 4 or 5")
    for zero, tensor in ((x_zero, data), (w_zero, kernel)):
        if zero:
            check_zero_point(body, zero, tensor)
    sizes = [body.size(kernel, axis, "a size of the kernel") for axis in range(rank)]
    spatial = rank - 2
    strides = list(body.attribute("strides", [1] * spatial))
    dilations = list(body.attribute("dilations", [1] * spatial))
    body.attribute("kernel_shape")
    groups = int(body.attribute("group", 1))
    padding, frame = _padding(body, data, sizes[2:], strides, dilations)
    function, layout, kernel_layout = _CONVOLUTIONS[rank]
    weights, point, fixed = signed_weights(body, kernel, w_zero)
    if not fixed:
        image, filters = (op.astype(body.tensor(name), "int32") for name in (data, kernel))
        if x_zero:
            image = op.subtract(image, op.reshape(op.astype(body.tensor(x_zero), "int32"), []))
        if w_zero:
            filters = op.subtract(
                filters, _by_output_channel(op.astype(body.tensor(w_zero), "int32"), body, w_zero, rank)
            )
        data, weights, level = body.bind(image), body.bind(filters), ""
    else:
        level = x_zero
    image = _surrounded(body, data, frame.widths if frame else [0] * (2 * rank), level)
    if frame:
        image = frame.cut(image, body.bind_tensor)
    if level:
        ends = [width for pair in zip(padding[:spatial], padding[spatial:], strict=True) for width in pair]
        image = _surrounded(body, body.bind(image), [0] * 4 + ends, level)
        padding = [0] * (2 * spatial)

    def convolve(filters: Any) -> Any:
        sums = function(
            image, filters, strides=strides, padding=padding, dilation=dilations, groups=groups,
            data_layout=layout, kernel_layout=kernel_layout, out_dtype="int32",
        )  # fmt: skip
        return body.bind_tensor(sums)

    total = convolve(body.tensor(weights))
    if fixed:
        levels = body.constant(weights)
        assert levels is not None
        total = _less_zero_points(body, total, convolve, levels, x_zero, point, groups)
    return [body.bind(total)]


def _less_zero_points(
    body: Body,
    total: Any,
    convolve: Callable[[Any], Any],
    weights: Array,
    x_zero: str,
    point: str,
    groups: int,
) -> Any:
    """`total`, sums of levels with `weights`, less what their zero points add; empty names: 0.

    `convolve`: the sums of products of the levels with a kernel. Everywhere in the image with its frame,
    w_zero_point adds the sum of the window, and x_zero_point the sum of the weights.
    """
    rank = weights.ndim
    shift = op.reshape(op.astype(body.tensor(x_zero), "int32"), []) if x_zero else None
    if shift is not None:
        sums = weights.astype("int32").sum(axis=tuple(range(1, rank)), dtype="int32")
        of_channel = relax.const(sums.reshape([1, -1] + [1] * (rank - 2)), "int32")
        total = op.subtract(total, op.multiply(of_channel, shift))
    if point:
        rows = convolve(relax.const(np.ones((groups, *weights.shape[1:]), "int8"), "int8"))
        if shift is not None:
            amount = relax.const(math.prod(weights.shape[1:]), "int32")
            rows = op.subtract(rows, op.multiply(amount, shift))
        if groups > 1:
            rows = op.repeat(rows, len(weights) // groups, 1)
        total = op.subtract(total, op.multiply(rows, _broadcast_to_result(body.tensor(point), rank)))
    return total


def _by_output_channel(value: Any, body: Body, name: str, rank: int) -> Any:
    """A zero point of weights, a scalar or one per output channel, in a shape that broadcasts with them."""
    sizes = body.shape(name)
    scalar = all(size == 1 for size in sizes)
    return op.reshape(value, [] if scalar else [*sizes] + [1] * (rank - 1))


ONNX: dict[str, Expansion] = {"ConvInteger": conv_integer}
