"""Random operators with sums: convolutions, products, pools, reductions, softmax, norms, extremes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..random_graphs.drawing import FLOAT, INT32, INT64
from .elementwise import ACTIVATIONS, fits_memory
from .graph import INT8, INT16, QUANTISED, UINT8, Activation, TfliteGraph
from .movement import IMAGES

SAME, VALID = 0, 1


@dataclass(frozen=True)
class Filter:
    """The weights and bias of an operator. gain: the greatest sum of magnitudes that makes one result.

    spread: how many times a usual input a usual result is.
    """

    weights: Activation
    bias: Activation | None
    gain: float
    spread: float

    @property
    def operands(self) -> list[Activation]:
        """The weights, and the bias if there is one."""
        return [self.weights] if self.bias is None else [self.weights, self.bias]


def _filter(graph: TfliteGraph, x: Activation, shape: tuple[int, ...], axis: int, has_bias: bool) -> Filter:
    """Weights of a shape whose outputs are along `axis`, once more some that another operator reads."""
    key = (shape, axis, x.dtype, x.scale if x.dtype in QUANTISED else None, has_bias)
    if key in graph.shared and graph.choice.random() < 0.3:
        return graph.shared[key]
    other_axes = tuple(a for a in range(len(shape)) if a != axis)
    count = shape[axis]
    if x.dtype == FLOAT:
        content = graph.array(shape, FLOAT, 0.5)
        weights = graph.weight(content, axis)
        bias = graph.constant(graph.array((count,), FLOAT), FLOAT) if has_bias else None
        real = content
    else:
        stored = UINT8 if x.dtype == UINT8 else INT8
        zero = graph.choice.choice([128, 120, 133, 0, 255]) if stored == UINT8 else 0
        levels = (
            graph.data.integers(-127, 128, shape) if stored == INT8 else graph.data.integers(0, 256, shape)
        )
        narrow = ""
        if x.dtype == INT8 and has_bias and graph.choice.random() < 0.1:
            narrow, levels = "int4", levels // 19
        scale = (graph.data.uniform(0.2, 1.8, count) * 0.5 / 127).astype(FLOAT)
        if stored == UINT8 or graph.choice.random() < 0.3:
            scale = scale[:1]
        scales = [float(s) for s in scale]
        given: Any = scales if len(scales) > 1 else scales[0]
        weights = graph.constant(levels, stored, given, zero, axis if len(scales) > 1 else 0, narrow)
        along = [-1 if a == axis else 1 for a in range(len(shape))]
        real = (levels - zero) * scale.reshape(along if len(scales) > 1 else (1,) * len(shape))
        bias = None
        if has_bias:
            products = [float(np.float32(x.scale or 1) * s) for s in scale]
            number = graph.data.integers(-3000, 3000, count)
            wide = INT64 if x.dtype == INT16 else INT32
            bias = graph.constant(number, wide, products if len(products) > 1 else products[0])
    sums, squares = np.abs(real).sum(other_axes), np.sqrt((real.astype("float64") ** 2).sum(other_axes).max())
    made = Filter(weights, bias, float(sums.max()), float(squares))
    graph.shared[key] = made
    return made


def _weighted(graph: TfliteGraph, x: Activation, shape: tuple[int, ...], held: Filter) -> Activation:
    """The result of an operator with weights."""
    most = 1.3 * held.spread * x.most + (
        held.bias.most if held.bias is not None and x.dtype == FLOAT else 0.0
    )
    return graph.result(x.dtype, shape, most, held.gain * x.error, x.dtype != FLOAT)


def _windows(graph: TfliteGraph, x: Activation, dilated: bool) -> tuple[dict[str, int], list[int], list[int]]:
    """Strides, dilations and padding as options; the kernel, and the sizes of the result."""
    padding = graph.choice.choice([SAME, VALID])
    options: dict[str, int] = {"padding": padding}
    kernels, sizes = [], []
    for size, side in zip(x.shape[1:3], "HW", strict=True):
        kernel, dilation = (
            graph.choice.choice([1, 2, 3, 3, 5]),
            graph.choice.choice([1, 1, 1, 2]) if dilated else 1,
        )
        stride = graph.choice.choice([1, 1, 2, 3])
        if padding == VALID and (kernel - 1) * dilation + 1 > size:
            kernel, dilation = min(2, size), 1
        span = (kernel - 1) * dilation + 1
        sizes.append(-(-size // stride) if padding == SAME else (size - span) // stride + 1)
        kernels.append(kernel)
        options[f"stride{side}"] = stride
        if dilated:
            options[f"dilation{side}Factor"] = dilation
    return options, kernels, sizes


def _image(graph: TfliteGraph) -> Activation:
    return graph.pick(graph.dtype, lambda v: v.rank == 4 and v.most <= 100, IMAGES)


def conv(graph: TfliteGraph) -> None:
    """CONV_2D, also grouped, or DEPTHWISE_CONV_2D with a multiplier; LiteRT wants a bias of both."""
    x = _image(graph)
    options, kernel, sizes = _windows(graph, x, True)
    channels = x.shape[3]
    options["fusedActivationFunction"] = graph.choice.choice(ACTIVATIONS)
    if graph.choice.random() < 0.4:
        each = graph.choice.choice([1, 1, 1, 2, 3])
        shape = (x.shape[0], *sizes, channels * each)
        if fits_memory(shape):
            held = _filter(graph, x, (1, *kernel, channels * each), 3, True)
            made, options["depthMultiplier"] = _weighted(graph, x, shape, held), each
            operands = [x, *held.operands]
            graph.add("DEPTHWISE_CONV_2D", operands, [made], "DepthwiseConv2DOptions", **options)
        return
    groups = graph.choice.choice([g for g in (1, 1, 1, 2, 4) if channels % g == 0])
    if graph.weights == INT8:
        groups = 1  # LiteRT's hybrid kernel has no groups
    outputs = groups * graph.choice.choice([1, 2, 3, 8, 5, 16, 32])
    shape = (x.shape[0], *sizes, outputs)
    if fits_memory(shape):
        held = _filter(graph, x, (outputs, *kernel, channels // groups), 0, True)
        operands = [x, *held.operands]
        graph.add("CONV_2D", operands, [_weighted(graph, x, shape, held)], "Conv2DOptions", **options)


def conv_transposed(graph: TfliteGraph) -> None:
    """TRANSPOSE_CONV to each size that its padding allows."""
    x = _image(graph)
    padding, outputs = graph.choice.choice([SAME, VALID]), graph.choice.choice([1, 2, 5, 8])
    kernel, strides, sizes = [], [], []
    for size in x.shape[1:3]:
        k, stride = graph.choice.choice([1, 2, 3, 4]), graph.choice.choice([1, 2, 2, 3])
        least = (size - 1) * stride + 1
        if padding == VALID:
            least += k - 1
        kernel.append(k)
        strides.append(stride)
        sizes.append(least + graph.choice.randint(0, stride - 1))
    shape = (x.shape[0], *sizes, outputs)
    if not fits_memory(shape):
        return
    held = _filter(graph, x, (outputs, *kernel, x.shape[3]), 0, graph.choice.random() < 0.5)
    operands = [graph.constant(shape, INT32), held.weights, x, *held.operands[1:]]
    options = {"padding": padding, "strideH": strides[0], "strideW": strides[1]}
    options["fusedActivationFunction"] = graph.choice.choice(ACTIVATIONS[:3])
    graph.add(
        "TRANSPOSE_CONV", operands, [_weighted(graph, x, shape, held)], "TransposeConvOptions", **options
    )


def dense(graph: TfliteGraph) -> None:
    """FULLY_CONNECTED of an input of any rank."""
    x = graph.pick(graph.dtype, lambda v: v.rank >= 1 and v.most <= 100)
    units, depth = graph.choice.choice([1, 3, 8, 17, 64]), x.shape[-1]
    keep = graph.choice.random() < 0.5
    rows = (*x.shape[:-1],) if keep else (math.prod(x.shape[:-1]),)
    if not fits_memory((*rows, units)):
        return
    held = _filter(graph, x, (units, depth), 0, graph.choice.random() < 0.7)
    options = {"keepNumDims": keep, "fusedActivationFunction": graph.choice.choice(ACTIVATIONS)}
    made = _weighted(graph, x, (*rows, units), held)
    operands = [x, held.weights, held.bias] if graph.choice.random() < 0.5 else [x, *held.operands]
    graph.add("FULLY_CONNECTED", operands, [made], "FullyConnectedOptions", **options)


def matmul(graph: TfliteGraph) -> None:
    """BATCH_MATMUL of any ranks, transposed on either side."""
    dtype = graph.dtype
    if dtype == UINT8:
        return
    x = graph.pick(dtype, lambda v: 2 <= v.rank <= 4 and v.most <= 30)
    first, second = graph.choice.random() < 0.3, graph.choice.random() < 0.3
    m, k = x.shape[-2:][::-1] if first else x.shape[-2:]
    n = graph.choice.choice([1, 3, 8, 17])
    batch = graph.partner(x.shape[:-2])
    y = graph.operand((*batch, *((n, k) if second else (k, n))), dtype)
    shape = (*np.broadcast_shapes(x.shape[:-2], batch), m, n)
    if not fits_memory(shape):
        return
    most = math.sqrt(k) * x.most * y.most
    error = k * (x.error * y.bound + y.error * x.bound)
    result = graph.result(dtype, shape, most, error, dtype != FLOAT)
    graph.add("BATCH_MATMUL", [x, y], [result], "BatchMatMulOptions", adjX=first, adjY=second)


def pool(graph: TfliteGraph) -> None:
    """Pools of means and maxima, which keep the quantisation."""
    x = _image(graph)
    name = graph.choice.choice(["MAX_POOL_2D", "AVERAGE_POOL_2D"])
    options, kernel, sizes = _windows(graph, x, False)
    options |= {"filterHeight": kernel[0], "filterWidth": kernel[1]}
    options["fusedActivationFunction"] = graph.choice.choice(ACTIVATIONS)
    result = replace(x, shape=(x.shape[0], *sizes, x.shape[3]))
    if name == "AVERAGE_POOL_2D":
        result = replace(result, exact=x.dtype != FLOAT)
        result = graph.rounded(result, 1) if x.error else result
    graph.add(name, [x], [result], "Pool2DOptions", **options)


def reduction(graph: TfliteGraph) -> None:
    """MEAN, SUM, REDUCE_MAX, REDUCE_MIN and REDUCE_PROD along any axes."""
    dtype = graph.choice.choice([graph.dtype, graph.dtype, graph.dtype, INT32])
    # The reference kernel of SUM gives one number for all quantised sums.
    sums = ["SUM"] if dtype in (FLOAT, INT32) else []
    name = graph.choice.choice(["MEAN", "MEAN", "REDUCE_MAX", "REDUCE_MIN", *sums])
    x = graph.pick(dtype, lambda v: v.rank >= 1 and v.most <= 100)
    axes = sorted(graph.choice.sample(range(x.rank), graph.choice.randint(1, x.rank)))
    keep = graph.choice.random() < 0.5
    shape = tuple(1 if a in axes else s for a, s in enumerate(x.shape) if keep or a not in axes)
    count = math.prod(x.shape[a] for a in axes)
    written = graph.constant([a - x.rank if graph.choice.random() < 0.4 else a for a in axes], INT32)
    if name in ("REDUCE_MAX", "REDUCE_MIN"):
        result = replace(x, shape=shape)
    elif name == "SUM":
        result = graph.result(dtype, shape, count * x.most, count * x.error, dtype != FLOAT)
    else:
        result = graph.result(dtype, shape, x.most / math.sqrt(count), x.error, dtype != FLOAT)
        if dtype in QUANTISED and graph.choice.random() < 0.5:
            result = graph.rounded(replace(result, scale=x.scale, zero=x.zero, error=x.error))
    graph.add(name, [x, written], [result], "ReducerOptions", keepDims=keep)


def places(graph: TfliteGraph) -> None:
    """ARG_MAX, ARG_MIN, TOPK_V2 and CUMSUM of values that are known exactly."""
    dtype = graph.choice.choice([d for d in (*graph.dtypes, INT32) if d != INT16])
    x = graph.pick(dtype, lambda v: v.rank >= 1, clean=True)
    axis = graph.choice.randrange(x.rank)
    name = graph.choice.choice(["ARG_MAX", "ARG_MIN", "TOPK_V2", "CUMSUM"])
    if name == "CUMSUM":
        if dtype not in (FLOAT, INT32) or x.most * x.shape[axis] > 1e4:
            return
        result = replace(x, most=x.most * x.shape[axis], exact=dtype != FLOAT)
        options = {"exclusive": graph.choice.random() < 0.5, "reverse": graph.choice.random() < 0.5}
        graph.add(name, [x, graph.constant(axis - x.rank, INT32)], [result], "CumsumOptions", **options)
    elif name == "TOPK_V2":
        k = graph.choice.randint(1, x.shape[-1])
        shape = (*x.shape[:-1], k)
        result = [replace(x, shape=shape), Activation("", INT32, shape, x.shape[-1])]
        graph.add(name, [x, graph.constant(k, INT32)], result, "TopKV2Options")
    else:
        shape = (*x.shape[:axis], *x.shape[axis + 1 :])
        table = "ArgMaxOptions" if name == "ARG_MAX" else "ArgMinOptions"
        kind, code = graph.choice.choice([(INT32, 2), (INT64, 4)])
        result = [Activation("", kind, shape, x.shape[axis])]
        graph.add(name, [x, graph.constant(axis, INT32)], result, table, outputType=code)


_FIXED = {
    "SOFTMAX": {INT8: (1 / 256, -128), UINT8: (1 / 256, 0), INT16: (1 / 32768, 0)},
    "LOG_SOFTMAX": {INT8: (16 / 256, 127), UINT8: (16 / 256, 255)},
    "L2_NORMALIZATION": {INT8: (1 / 128, 0), UINT8: (1 / 128, 128)},
}


def along_the_last(graph: TfliteGraph) -> None:
    """SOFTMAX, LOG_SOFTMAX and L2_NORMALIZATION along the last axis."""
    dtype = graph.dtype
    name = graph.choice.choice(["SOFTMAX", "SOFTMAX", "LOG_SOFTMAX", "L2_NORMALIZATION"])
    if dtype == INT16:
        name = "SOFTMAX"
    x = graph.pick(dtype, lambda v: 1 <= v.rank <= 4 and v.most <= 50 and (name[0] == "S" or v.shape[-1] > 2))
    scale, zero = _FIXED[name].get(dtype, (None, 0))
    most = 1.0 if name != "LOG_SOFTMAX" else 2 * x.most + 5
    gain = {"SOFTMAX": 0.5, "LOG_SOFTMAX": 2.0, "L2_NORMALIZATION": 4.0}[name]
    beta = graph.choice.choice([1.0, 1.0, 0.5, 2.0])
    error = x.error * gain * (beta if name == "SOFTMAX" else 1.0)
    result = Activation("", dtype, x.shape, most, dtype != FLOAT, -1, scale, zero, error)
    table = {
        "SOFTMAX": "SoftmaxOptions",
        "LOG_SOFTMAX": "LogSoftmaxOptions",
        "L2_NORMALIZATION": "L2NormOptions",
    }[name]
    options: dict[str, Any] = {"beta": beta} if name == "SOFTMAX" else {}
    graph.add(name, [x], [graph.rounded(result, 48 if dtype == INT16 else 2)], table, **options)


ALL = (
    conv, conv, conv, conv, conv_transposed, dense, dense, matmul, pool, pool, reduction, reduction, places,
    along_the_last,
)  # fmt: skip
