"""ConvInteger: convolution of 8-bit tensors with int32 sums; matmuls: kiln.frontend.onnx.integer_ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

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


def conv_integer(body: Body) -> list[str]:
    """ConvInteger: sum over the window of (x - x_zero_point) (w - w_zero_point); padding counts as 0."""
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

    def convolve(image: Any, weights: Any) -> Any:
        if frame is not None:
            padded = body.tensor(body.bind(op.nn.pad(image, frame.widths)))
            image = frame.cut(padded, lambda value: body.tensor(body.bind(value)))
        sums = function(
            image, weights, strides=strides, padding=padding, dilation=dilations, groups=groups,
            data_layout=layout, kernel_layout=kernel_layout, out_dtype="int32",
        )  # fmt: skip
        return body.tensor(body.bind(sums))

    weights, point, fixed = signed_weights(body, kernel, w_zero)
    if not fixed:
        image, filters = (op.astype(body.tensor(name), "int32") for name in (data, kernel))
        if x_zero:
            image = op.subtract(image, op.reshape(op.astype(body.tensor(x_zero), "int32"), []))
        if w_zero:
            filters = op.subtract(
                filters, _by_output_channel(op.astype(body.tensor(w_zero), "int32"), body, w_zero, rank)
            )
        return [body.bind(convolve(body.tensor(body.bind(image)), body.tensor(body.bind(filters))))]
    image = body.tensor(data)
    image_of_ones = op.full([1, *body.shape(data)[1:]], relax.const(1, "int8"), "int8")
    total = convolve(image, body.tensor(weights))
    shift = op.reshape(op.astype(body.tensor(x_zero), "int32"), []) if x_zero else None
    if shift is not None:
        total = op.subtract(total, op.multiply(convolve(image_of_ones, body.tensor(weights)), shift))
    if point:
        kernel_of_ones = relax.const(np.ones((groups, *sizes[1:]), "int8"), "int8")
        rows = convolve(image, kernel_of_ones)
        if shift is not None:
            rows = op.subtract(rows, op.multiply(convolve(image_of_ones, kernel_of_ones), shift))
        if groups > 1:
            rows = op.repeat(rows, sizes[0] // groups, 1)
        total = op.subtract(total, op.multiply(rows, _broadcast_to_result(body.tensor(point), rank)))
    return [body.bind(total)]


def _by_output_channel(value: Any, body: Body, name: str, rank: int) -> Any:
    """A zero point of weights, a scalar or one per output channel, in a shape that broadcasts with them."""
    sizes = body.shape(name)
    scalar = all(size == 1 for size in sizes)
    return op.reshape(value, [] if scalar else [*sizes] + [1] * (rank - 1))


ONNX: dict[str, Expansion] = {"ConvInteger": conv_integer}
