"""Depthwise convolution on NHWC: one input channel for each output channel.

Computation  y[n,h,w,c] = f(sum x[n, h s + i d, w s + j d, c] * k[i,j,0,c]), f = whatever was fused behind.
Packing      none: [KH,KW,1,C] is already read in order.
Schedule     A row of output is cut into strips of pixels; for each vector of channels the strip's sums
             stay in registers, and an input value that several pixels share is loaded once. Channels are
             the inner loop (the outer one costs 1.3 to 2 times as much). Tasks are output rows.
Applies      NHWC/HWIO, groups = channels, no padding left in the op; any kernel, stride and dilation.
Accuracy     Sums run in order of (i, j): plain summation in float32, exact in int32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx

from kiln.kernels.conv2d import Convolution
from kiln.kernels.epilogue import Epilogue, may_overwrite, parameters
from kiln.kernels.fused import Fused, Nest
from kiln.kernels.kernel import (
    Argument,
    Expr,
    Kernel,
    Machine,
    argument,
    bind,
    chunks,
    define,
    divide,
    int64,
    load,
    modulo,
    registers,
    serial,
    store,
    vector,
)
from kiln.kernels.opinfo import OpInfo
from kiln.kernels.sweep import tasks_of


def applies(op: OpInfo, fused: Fused, anchor: Nest, constants: set[int]) -> bool:
    """Whether this family can compute the group that begins with `op`."""
    if op["name"] != "nn.conv2d" or len(fused.params) < 3:
        return False
    attrs, x, weights = op["attrs"], fused.params[0], fused.params[1]
    if attrs["data_layout"] != "NHWC" or attrs["kernel_layout"] != "HWIO" or any(attrs["padding"]):
        return False
    channels, groups = int(x.shape[3]), int(attrs["groups"])
    one_to_one = groups == channels == int(weights.shape[3]) and groups > 1
    return one_to_one and str(anchor.buffer.dtype) in ("float32", "int32")


def strip_length(machine: Machine, conv: Convolution) -> int:
    """Output pixels in a strip: sums and the shared inputs of one kernel row must fit the registers."""
    free = machine.registers - conv.kernel_w - 2
    for length in (8, 6, 4, 3, 2):
        inputs = (length - 1) * conv.stride_w + 1
        if length <= conv.out_w and length + min(inputs, conv.kernel_w + length) <= free + length // 2:
            return length
    return 1


def make(op: OpInfo, fused: Fused, anchor: Nest, last: Nest, machine: Machine) -> tuple[Kernel, list[Any]]:
    """The kernel of `anchor` and of what follows it up to `last`, and the buffers of its parameters."""
    x_param, w_param = fused.params[0], fused.params[1]
    conv = Convolution(op, fused, anchor)
    accumulator = str(anchor.buffer.dtype)
    lanes = machine.lanes("float32")
    measured = conv.choice(machine).strip if accumulator == "float32" else None
    strip = strip_length(machine, conv) if measured is None else min(measured, int(conv.out_w))
    buffers_read = parameters(fused, anchor, last)
    arguments = [argument(param) for param in buffers_read]
    arguments[0] = Argument(x_param.name, [int(np.prod(x_param.shape))], str(x_param.dtype))
    arguments[1] = Argument(w_param.name, [int(np.prod(w_param.shape))], str(w_param.dtype))
    lines = conv.batch * conv.out_h
    # Fewer operations a load than a matrix product: it takes longer for the same number.
    tasks = lines if machine.shares(4 * conv.macs // lanes) else None

    def body(buffers: list[Any], begin: Expr, end: Expr) -> None:
        element = Epilogue(fused, anchor, last, dict(zip(buffers_read, buffers, strict=True)))

        def pixels(line: Expr, first: Expr, count: int) -> None:
            whole = conv.channels // lanes
            if whole:
                with serial(whole) as block:
                    _strip(
                        conv, buffers, line, first, count, block * int64(lanes), lanes, accumulator, element
                    )
            for offset, width in chunks(conv.channels - whole * lanes, lanes):
                channel = int64(whole * lanes + offset)
                _strip(conv, buffers, line, first, count, channel, width, accumulator, element)

        with tasks_of(lines, tasks is not None, begin, end) as line:
            whole = conv.out_w // strip
            if whole:
                with serial(whole) as index:
                    pixels(line, index * int64(strip), strip)
            if conv.out_w % strip:
                pixels(line, int64(whole * strip), conv.out_w % strip)

    in_place = may_overwrite(fused, anchor, last, buffers_read)
    func = define(arguments, tasks, body, aliases=bool(in_place))
    return Kernel(func, tasks, {}, "depthwise", in_place), buffers_read


def _strip(
    conv: Convolution, buffers: list[Any], line: Expr, first: Expr, count: int,
    channel: Expr, width: int, accumulator: str, element: Epilogue,
) -> None:  # fmt: skip
    """`count` output pixels of row `line` from column `first`, for `width` channels from `channel`."""
    x, weights = buffers[0], buffers[1]
    n, h = divide(line, conv.out_h), modulo(line, conv.out_h)
    if conv.batch == 1:
        n, h = int64(0), line
    sums = registers([count, width], accumulator)
    for index in range(count):
        with vector(width) as lane:
            store(sums, [int64(index), lane], tirx.const(0, accumulator))
    top = bind((n * int64(conv.height) + h * int64(conv.stride_h) + int64(conv.top)) * int64(conv.width))
    left = bind(first * int64(conv.stride_w) + int64(conv.left))
    # A kernel row at a time, unrolled: which inputs the pixels of the strip share is then plain to LLVM.
    with serial(conv.kernel_h) as i:
        row = bind((top + i * int64(conv.dilation_h * conv.width) + left) * int64(conv.channels) + channel)
        taps = bind(i * int64(conv.kernel_w * conv.channels) + channel)
        for j in range(conv.kernel_w):
            for index in range(count):
                offset = (index * conv.stride_w + j * conv.dilation_w) * conv.channels
                with vector(width) as lane:
                    value = tirx.Cast(accumulator, load(x, [row + int64(offset) + lane]))
                    tap = tirx.Cast(accumulator, load(weights, [taps + int64(j * conv.channels) + lane]))
                    store(sums, [int64(index), lane], load(sums, [int64(index), lane]) + value * tap)
    for index in range(count):
        with vector(width) as lane:
            indices = [n, h, first + int64(index), channel + lane]
            element.store(indices, load(sums, [int64(index), lane]))
