"""Random nodes with sums: products, convolutions, pools, reductions, norms, softmax, recurrences."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .drawing import FLOAT, INT64, MOST_ELEMENTS
from .elementwise import pick
from .graph import Graph, Value


def matmul(graph: Graph) -> None:
    """MatMul of any ranks, with constants or values of the run on either side."""
    x = pick(graph, most=100)
    if x.rank < 1:
        return
    columns, k = graph.choice.choice([1, 3, 8, 17, 33]), x.shape[-1]
    batch = tuple(graph.choice.choice([s, 1]) for s in x.shape[:-2])
    batch = graph.choice.choice([batch, ()])
    shape = (k,) if graph.choice.random() < 0.1 else (*batch, k, columns)
    y = graph.operand(shape, FLOAT)
    a, b = np.zeros(x.shape), np.zeros(y.shape)
    result = np.matmul(a, b).shape
    if np.prod(result) <= MOST_ELEMENTS:
        graph.add("MatMul", [x, y], [(FLOAT, result, k * x.most * y.most, False)])


def gemm(graph: Graph) -> None:
    """Gemm with all of its options."""
    trans_a, trans_b = graph.choice.randint(0, 1), graph.choice.randint(0, 1)
    m, k, n = (graph.choice.choice([1, 2, 5, 16, 19]) for _ in range(3))
    candidates = [v for v in graph.values if v.rank == 2 and v.dtype == FLOAT and v.most < 100]
    a = graph.choice.choice(candidates) if candidates else graph.operand((k, m) if trans_a else (m, k), FLOAT)
    m, k = a.shape[::-1] if trans_a else a.shape
    b = graph.operand((n, k) if trans_b else (k, n), FLOAT)
    c = graph.operand(graph.choice.choice([(n,), (m, 1), (m, n), (), (1, n)]), FLOAT)
    operands: list[Value | None] = [a, b, c] if graph.choice.random() < 0.8 else [a, b]
    alpha, beta = graph.choice.choice([1.0, 0.5]), graph.choice.choice([1.0, -0.25])
    most = k * a.most * b.most + 2
    graph.add(
        "Gemm",
        operands,
        [(FLOAT, (m, n), most, False)],
        transA=trans_a,
        transB=trans_b,
        alpha=alpha,
        beta=beta,
    )


def _image(graph: Graph) -> Value:
    """A value of rank 3 to 5 with small spatial axes."""
    candidates = [v for v in graph.values if 3 <= v.rank <= 5 and v.dtype == FLOAT and v.most <= 100]
    if candidates and graph.choice.random() < 0.7:
        return graph.choice.choice(candidates[-5:])
    shapes = [(1, 4, 9, 8), (2, 6, 5, 5), (1, 3, 16), (1, 8, 12, 7), (1, 2, 4, 5, 6), (3, 16, 4, 4)]
    return graph.input(graph.choice.choice(shapes), FLOAT)


def _windows(graph: Graph, x: Value, dilated: bool) -> dict[str, Any]:
    """Kernel, strides, dilations and padding that fit the spatial axes of `x`."""
    found: dict[str, list[int]] = {
        "kernel_shape": [],
        "strides": [],
        "dilations": [],
        "before": [],
        "after": [],
    }
    for size in x.shape[2:]:
        kernel = graph.choice.choice([1, 2, 3, 3, 5])
        dilation = graph.choice.choice([1, 1, 2]) if dilated else 1
        if (kernel - 1) * dilation + 1 > size:
            kernel, dilation = min(2, size), 1
        pad = min(kernel - 1, 2)
        stride = graph.choice.choice([1, 1, 2])
        chosen = kernel, stride, dilation, graph.choice.randint(0, pad), graph.choice.randint(0, pad)
        for values, value in zip(found.values(), chosen, strict=True):
            values.append(value)
    return found


def _sizes(x: Value, w: dict[str, Any], ceil: bool = False) -> tuple[int, ...]:
    sizes = []
    for at, size in enumerate(x.shape[2:]):
        span = (w["kernel_shape"][at] - 1) * w["dilations"][at] + 1
        room, stride = size + w["before"][at] + w["after"][at] - span, w["strides"][at]
        count = (math.ceil(room / stride) if ceil else room // stride) + 1
        if ceil and (count - 1) * stride >= size + w["before"][at]:
            count -= 1
        sizes.append(count)
    return tuple(sizes)


def conv(graph: Graph) -> None:
    """Conv of one to three spatial axes, grouped, depthwise, dilated, unevenly padded."""
    x, w = _image(graph), {}
    w = _windows(graph, x, True)
    channels = x.shape[1]
    groups = graph.choice.choice([g for g in (1, 1, 2, channels) if channels % g == 0])
    outputs = groups * graph.choice.choice([1, 2, 3, 8])
    weights = graph.constant(graph.array((outputs, channels // groups, *w["kernel_shape"]), FLOAT, 0.5))
    operands: list[Value | None] = [x, weights]
    if graph.choice.random() < 0.7:
        operands.append(graph.constant(graph.array((outputs,), FLOAT)))
    shape = (x.shape[0], outputs, *_sizes(x, w))
    if np.prod(shape) > MOST_ELEMENTS:
        return
    most = x.most * 0.5 * channels // groups * math.prod(w["kernel_shape"]) + 2
    graph.add(
        "Conv", operands, [(FLOAT, shape, most, False)],
        group=groups, strides=w["strides"], dilations=w["dilations"], pads=[*w["before"], *w["after"]],
        kernel_shape=w["kernel_shape"],
    )  # fmt: skip


def conv_transposed(graph: Graph) -> None:
    """ConvTranspose, grouped, with padding and output padding."""
    x = _image(graph)
    w = _windows(graph, x, True)
    channels = x.shape[1]
    groups = graph.choice.choice([g for g in (1, 1, 2, channels) if channels % g == 0])
    each = graph.choice.choice([1, 2, 5])
    weights = graph.constant(graph.array((channels, each, *w["kernel_shape"]), FLOAT, 0.5))
    more = [graph.choice.randint(0, stride - 1) for stride in w["strides"]]
    sizes = []
    for at, size in enumerate(x.shape[2:]):
        span = (w["kernel_shape"][at] - 1) * w["dilations"][at] + 1
        sizes.append(w["strides"][at] * (size - 1) + more[at] + span - w["before"][at] - w["after"][at])
    shape = (x.shape[0], groups * each, *sizes)
    if min(sizes) < 1 or np.prod(shape) > MOST_ELEMENTS:
        return
    operands: list[Value | None] = [x, weights]
    if graph.choice.random() < 0.6:
        operands.append(graph.constant(graph.array((groups * each,), FLOAT)))
    most = x.most * 0.5 * channels * math.prod(w["kernel_shape"]) + 2
    graph.add(
        "ConvTranspose", operands, [(FLOAT, shape, most, False)],
        group=groups, strides=w["strides"], dilations=w["dilations"], pads=[*w["before"], *w["after"]],
        output_padding=more, kernel_shape=w["kernel_shape"],
    )  # fmt: skip


def pool(graph: Graph) -> None:
    """Pools of maxima and means, with all ways of rounding and counting."""
    x = _image(graph)
    name = graph.choice.choice(
        ["MaxPool", "AveragePool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "LpPool"]
    )
    if name.startswith("Global"):
        shape = (*x.shape[:2], *[1] * (x.rank - 2))
        graph.add(name, [x], [(FLOAT, shape, x.most, x.exact and name == "GlobalMaxPool")])
        return
    w = _windows(graph, x, name != "LpPool")
    ceil = graph.choice.random() < 0.4
    for at, kernel in enumerate(w["kernel_shape"]):
        span = (kernel - 1) * w["dilations"][at] + 1
        w["before"][at], w["after"][at] = (min(w[side][at], (span - 1) // 2) for side in ("before", "after"))
    shape = (*x.shape[:2], *_sizes(x, w, ceil))
    options: dict[str, Any] = {"ceil_mode": int(ceil)}
    if name == "AveragePool":
        options["count_include_pad"] = graph.choice.randint(0, 1)
    if name == "LpPool":
        options["p"] = graph.choice.choice([1, 2])
    most = x.most * (math.prod(w["kernel_shape"]) if name == "LpPool" else 1)
    graph.add(
        name, [x], [(FLOAT, shape, most, x.exact and name == "MaxPool")],
        kernel_shape=w["kernel_shape"], strides=w["strides"], dilations=w["dilations"],
        pads=[*w["before"], *w["after"]], **options,
    )  # fmt: skip


def reduction(graph: Graph) -> None:
    """Reductions along any axes."""
    x = pick(graph, most=100)
    axes = sorted(graph.choice.sample(range(x.rank), graph.choice.randint(0, x.rank)))
    keep = graph.choice.randint(0, 1)
    names = [
        "ReduceSum",
        "ReduceMean",
        "ReduceMax",
        "ReduceMin",
        "ReduceL1",
        "ReduceL2",
        "ReduceSumSquare",
        "ReduceLogSumExp",
    ]
    name = graph.choice.choice(names)
    reduced = axes or list(range(x.rank))
    shape = tuple(1 if a in reduced else s for a, s in enumerate(x.shape) if keep or a not in reduced)
    count = math.prod(x.shape[a] for a in reduced)
    most = {
        "ReduceMean": x.most,
        "ReduceMax": x.most,
        "ReduceMin": x.most,
        "ReduceSumSquare": count * x.most**2,
    }
    written = [a - x.rank if graph.choice.random() < 0.4 else a for a in axes]
    inputs: list[Value | None] = [x, graph.constant(written, INT64)] if axes else [x]
    exact = x.exact and name in ("ReduceMax", "ReduceMin")
    graph.add(name, inputs, [(FLOAT, shape, most.get(name, count * x.most + 10), exact)], keepdims=keep)


def positions(graph: Graph) -> None:
    """ArgMax, ArgMin, TopK and CumSum of exact values."""
    x = pick(graph, exact=True)
    if x.rank < 1:
        return
    axis = graph.choice.randrange(x.rank)
    name = graph.choice.choice(["ArgMax", "ArgMin", "TopK", "CumSum"])
    if name == "CumSum":
        at = graph.constant(axis - x.rank, INT64)
        options = {"exclusive": graph.choice.randint(0, 1), "reverse": graph.choice.randint(0, 1)}
        graph.add(name, [x, at], [(FLOAT, x.shape, x.shape[axis] * x.most, False)], **options)
    elif name == "TopK":
        k = graph.choice.randint(1, x.shape[axis])
        shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
        graph.add(
            name, [x, graph.constant([k], INT64)],
            [(FLOAT, shape, x.most, True), (INT64, shape, x.shape[axis], True)],
            axis=axis, largest=graph.choice.randint(0, 1),
        )  # fmt: skip
    else:
        keep = graph.choice.randint(0, 1)
        shape = (*x.shape[:axis], *[1] * keep, *x.shape[axis + 1 :])
        last = graph.choice.randint(0, 1)
        graph.add(
            name, [x], [(INT64, shape, x.shape[axis], True)], axis=axis, keepdims=keep, select_last_index=last
        )


def softmax(graph: Graph) -> None:
    """Softmax or LogSoftmax along any axis."""
    x = pick(graph, most=100)
    if x.rank:
        name = graph.choice.choice(["Softmax", "Softmax", "LogSoftmax"])
        most = 1.0 if name == "Softmax" else 2 * x.most + 10
        graph.add(name, [x], [(FLOAT, x.shape, most, False)], axis=graph.choice.randrange(-x.rank, x.rank))


def norm(graph: Graph) -> None:
    """Layer, instance, batch and local response norms."""
    name = graph.choice.choice(
        ["LayerNormalization", "InstanceNormalization", "BatchNormalization", "LRN", "LpNormalization"]
    )
    x = pick(graph, most=50)
    if name in ("LayerNormalization", "LpNormalization"):
        if x.rank < 1 or x.shape[-1] < 3:
            return
        axis = graph.choice.randrange(x.rank)
        if name == "LpNormalization":
            # Away from 0, where a vector of zeros has no norm.
            above = graph.add(
                "Add", [x, graph.constant(60.0, FLOAT)], [(FLOAT, x.shape, x.most + 60, False)]
            )[0]
            graph.add(name, [above], [(FLOAT, x.shape, 1.0, False)], axis=axis, p=graph.choice.choice([1, 2]))
            return
        scale = graph.operand(x.shape[axis:], FLOAT)
        operands: list[Value | None] = [x, scale]
        if graph.choice.random() < 0.7:
            operands.append(graph.operand(x.shape[axis:], FLOAT))
        graph.add(name, operands, [(FLOAT, x.shape, 40.0, False)], axis=axis - x.rank, epsilon=0.01)
        return
    x = _image(graph)
    if name == "LRN" and x.rank != 4:
        return
    channels = x.shape[1]
    one = [graph.constant(graph.array((channels,), FLOAT)) for _ in range(3)]
    if name == "LRN":
        graph.add(name, [x], [(FLOAT, x.shape, x.most, False)], size=graph.choice.choice([3, 5]), alpha=0.1)
    elif name == "BatchNormalization":
        variance = graph.constant(graph.data.uniform(0.5, 2, (channels,)), FLOAT)
        graph.add(name, [x, *one, variance], [(FLOAT, x.shape, 4 * x.most + 8, False)])
    else:
        graph.add(name, [x, *one[:2]], [(FLOAT, x.shape, 40.0, False)], epsilon=0.05)


def recurrent(graph: Graph) -> None:
    """LSTM, GRU or RNN in either or both directions."""
    name = graph.choice.choice(["LSTM", "GRU", "RNN"])
    length, batch, size, hidden = graph.choice.choice([(5, 1, 4, 6), (3, 2, 7, 5), (9, 3, 8, 8)])
    x = graph.operand((length, batch, size), FLOAT)
    direction = graph.choice.choice(["forward", "reverse", "bidirectional"])
    ways, gates = (2 if direction == "bidirectional" else 1), {"LSTM": 4, "GRU": 3, "RNN": 1}[name]
    w = graph.constant(graph.array((ways, gates * hidden, size), FLOAT, 0.5))
    r = graph.constant(graph.array((ways, gates * hidden, hidden), FLOAT, 0.5))
    b = graph.constant(graph.array((ways, 2 * gates * hidden), FLOAT, 0.5))
    options = {"linear_before_reset": graph.choice.randint(0, 1)} if name == "GRU" else {}
    results = [(FLOAT, (length, ways, batch, hidden), 5.0, False), (FLOAT, (ways, batch, hidden), 5.0, False)]
    graph.add(name, [x, w, r, b], results, hidden_size=hidden, direction=direction, **options)


ALL = (
    matmul, matmul, gemm, conv, conv, conv, conv_transposed, pool, pool, reduction, reduction, positions,
    softmax, norm, recurrent,
)  # fmt: skip
