"""Normalisations, reductions, pooling, and elementwise operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx

from benchmarks.operators.case import Case, sizes_text


def normalisations() -> Iterator[Case]:
    """Yield the cases."""
    for shape in [(1, 197, 192), (64, 1000), (10, 77), (1, 50, 2048), (1000, 24)]:
        case = Case(f"layer_norm {sizes_text(*shape)}")
        x = case.input(shape)
        case.node("LayerNormalization", x, case.weight(shape[-1]), case.weight(shape[-1]), axis=-1)
        yield case
    for shape in [(1, 32, 56, 56), (1, 64, 1000), (2, 24, 33, 33), (1, 3, 128, 128)]:
        case = Case(f"instance_norm {sizes_text(*shape)}")
        case.node("InstanceNormalization", case.input(shape), case.weight(shape[1]), case.weight(shape[1]))
        yield case
    for groups, shape in [
        (8, (1, 64, 28, 28)),
        (32, (1, 128, 16, 16)),
        (1, (1, 64, 2000)),
        (4, (2, 32, 7, 7)),
    ]:
        case = Case(f"group_norm {groups} {sizes_text(*shape)}")
        parts = case.node("Reshape", case.input(shape), case.constant([shape[0], groups, -1], "int64"))
        ones, zeros = case.constant(np.ones(groups, "float32")), case.constant(np.zeros(groups, "float32"))
        normal = case.node("InstanceNormalization", parts, ones, zeros)
        reshaped = case.node("Reshape", normal, case.constant(shape, "int64"))
        wide = (shape[1], *(1 for _ in shape[2:]))
        case.node("Add", case.node("Mul", reshaped, case.weight(*wide)), case.weight(*wide))
        yield case
    case = Case("batch_norm 1x64x40x40 then relu")
    operands = [case.constant(np.ones(64, "float32")) for _ in range(4)]
    case.node("Relu", case.node("BatchNormalization", case.input([1, 64, 40, 40]), *operands))
    yield case
    case = Case("lrn 1x64x27x27")
    case.node("LRN", case.input([1, 64, 27, 27]), size=5)
    yield case
    for shape, axis in [((64, 1000), -1), ((1, 19, 60, 80), 1), ((50, 40, 30), 0), ((8, 3, 500), 1),
                        ((2000, 10), 1), ((4, 100, 77), 1), ((5000, 2), 1), ((12, 49, 49), -1),
                        ((30, 9, 64), 1)]:  # fmt: skip
        case = Case(f"softmax {sizes_text(*shape)} axis {axis}")
        case.node("Softmax", case.input(shape), axis=axis)
        yield case
    case = Case("log_softmax 100x333")
    case.node("LogSoftmax", case.input([100, 333]), axis=-1)
    yield case


def reductions() -> Iterator[Case]:
    """Yield the cases."""
    for kind, shape, axes in [
        ("ReduceMean", (1, 64, 56, 56), [2, 3]), ("ReduceSum", (1000, 300), [0]),
        ("ReduceMax", (100, 60, 50), [1]), ("ReduceSum", (200000,), [0]), ("ReduceMean", (8, 500, 64), [1]),
        ("ReduceL2", (300, 257), [1]), ("ReduceSum", (30, 40, 50, 6), [0, 2]), ("ReduceProd", (500, 30), [1]),
        ("ReduceMin", (3, 100, 100), [0]), ("ReduceLogSumExp", (200, 100), [1]),
        ("ReduceMean", (20, 1000, 7), [1]), ("ReduceSum", (5000, 3), [1]),
        ("ReduceMax", (1, 33, 31, 29), [2, 3]), ("ReduceMean", (4, 50, 7, 30), [0, 2]),
        ("ReduceSum", (1, 16, 32, 40), [1]), ("ReduceMean", (1, 512, 7, 7), [2, 3]),
        ("ReduceSumSquare", (60, 50, 20), [0, 1]), ("ReduceMax", (64, 100, 3), [1]),
        ("ReduceL1", (12, 5, 800), [1]), ("ReduceMean", (1, 20, 50, 24), [1, 2]),
    ]:  # fmt: skip
        case = Case(f"reduce {kind} {sizes_text(*shape)} axes {sizes_text(*axes)}")
        case.node(kind, case.input(shape), case.constant(axes, "int64"), keepdims=0)
        yield case
    for shape, axis in [((1, 19, 60, 80), 1), ((300, 500), 1), ((400, 60, 3), 0), ((1000, 10), 1)]:
        case = Case(f"argmax {sizes_text(*shape)} axis {axis}")
        case.node("ArgMax", case.input(shape), axis=axis)
        yield case
    for shape, axis in [((64, 1000), 1), ((1000, 64), 0), ((20, 50, 30), 1), ((1, 5000), 1)]:
        case = Case(f"cumsum {sizes_text(*shape)} axis {axis}")
        case.node("CumSum", case.input(shape), case.constant(axis, "int64"))
        yield case
    for shape, axis, count in [((1, 1000), 1, 5), ((100, 300), 1, 10), ((8400,), 0, 300), ((30, 500), 1, 500),
                               ((80, 40, 5), 1, 3), ((200, 100), 1, 1), ((1, 30, 400), 1, 4)]:  # fmt: skip
        case = Case(f"topk {sizes_text(*shape)} axis {axis} of {count}")
        case.node("TopK", case.input(shape), case.constant([count], "int64"), axis=axis, count=2)
        yield case


def pooling() -> Iterator[Case]:
    """Yield the cases."""
    for kind, shape, size, stride, pad in [
        ("MaxPool", (1, 64, 56, 56), 3, 2, 1), ("AveragePool", (1, 64, 40, 40), 3, 1, 1),
        ("MaxPool", (1, 128, 20, 20), 5, 1, 2), ("MaxPool", (1, 17, 61, 45), 2, 2, 0),
        ("AveragePool", (1, 96, 28, 28), 7, 7, 0), ("MaxPool", (1, 64, 2000), 3, 2, 1),
        ("MaxPool", (1, 32, 8, 28, 28), 2, 2, 0), ("AveragePool", (1, 24, 8, 20, 20), 3, 2, 0),
        ("MaxPool", (1, 3, 128, 128), 13, 1, 6), ("AveragePool", (1, 24, 40, 40), 2, 2, 0),
        ("MaxPool", (1, 64, 80, 80), 2, 2, 0), ("AveragePool", (1, 36, 31, 31), 3, 2, 1),
        ("MaxPool", (1, 5, 100, 100), 3, 2, 1), ("MaxPool", (4, 32, 20, 20), 3, 1, 1),
    ]:  # fmt: skip
        case = Case(f"pool {kind} {sizes_text(*shape)} of {size} stride {stride}")
        rank = len(shape) - 2
        sizes: dict[str, Any] = {
            "kernel_shape": [size] * rank,
            "strides": [stride] * rank,
            "pads": [pad] * 2 * rank,
        }
        case.node(kind, case.input(shape), **sizes)
        yield case
    for kind, shape in [("GlobalAveragePool", (1, 300, 17, 17)), ("GlobalAveragePool", (8, 64, 7, 7)),
                        ("GlobalMaxPool", (1, 96, 20, 20))]:  # fmt: skip
        case = Case(f"pool {kind} {sizes_text(*shape)}")
        case.node(kind, case.input(shape))
        yield case


def elementwise() -> Iterator[Case]:
    """Yield the cases."""
    for kind, left, right in [
        ("Add", (1, 64, 40, 40), (1, 64, 1, 1)), ("Mul", (8, 1, 50, 60), (1, 12, 1, 60)),
        ("Add", (30, 1, 400), (1, 50, 400)), ("Mul", (200, 1), (1, 300)), ("Sub", (60, 50, 33), (50, 1)),
        ("Div", (100, 70, 3), (3,)), ("Pow", (50000,), (1,)), ("Max", (64, 1000), (64, 1)),
        ("Mul", (1, 100, 20, 7), (1, 100, 1, 7)), ("Add", (300, 301), (300, 301)),
    ]:  # fmt: skip
        case = Case(f"binary {kind} {sizes_text(*left)} by {sizes_text(*right)}")
        case.node(kind, case.input(left), case.input(right))
        yield case
    for kind in ["Sigmoid", "Tanh", "Erf", "Exp", "Log", "Sqrt", "Gelu", "HardSwish", "Softplus", "Sin",
                 "Mish", "Elu", "Round", "Reciprocal", "Softsign"]:  # fmt: skip
        case = Case(f"unary {kind} 50x1003")
        operand = case.input([50, 1003])
        if kind in ("Log", "Sqrt"):
            operand = case.node("Abs", operand)
        case.node(kind, operand)
        yield case
    case = Case("select 64x33x50")
    operands = case.input([64, 33, 50]), case.input([64, 1, 50])
    case.node("Where", case.node("Greater", *operands), *operands)
    yield case
    for dtype in ["int64", "int32", "uint8", "float16"]:
        case = Case(f"cast {dtype} 64x1000")
        case.node("Cast", case.input([64, 1000], dtype), to=onnx.TensorProto.FLOAT)
        yield case
    yield from _chains()
    case = Case("normalise uint8 1x240x320x3")
    pixels = case.node("Cast", case.input([1, 240, 320, 3], "uint8"), to=onnx.TensorProto.FLOAT)
    scaled = case.node("Div", case.node("Sub", pixels, case.weight(3, scale=50)), case.weight(3, scale=50))
    case.node("Transpose", scaled, perm=[0, 3, 1, 2])
    yield case


def _chains() -> Iterator[Case]:
    """Activations and norms as exporters write them, of several operators."""
    case = Case("chain gelu of erf 50x768")
    x = case.input([50, 768])
    grown = case.node("Erf", case.node("Div", x, case.constant(2**0.5, "float32")))
    grown = case.node("Add", grown, case.constant(1, "float32"))
    case.node("Mul", case.node("Mul", x, grown), case.constant(0.5, "float32"))
    yield case
    case = Case("chain gelu of tanh 50x768")
    x = case.input([50, 768])
    cubed = case.node(
        "Mul", case.node("Pow", x, case.constant(3, "float32")), case.constant(0.044715, "float32")
    )
    inner = case.node("Mul", case.node("Add", x, cubed), case.constant((2 / np.pi) ** 0.5, "float32"))
    grown = case.node("Add", case.node("Tanh", inner), case.constant(1, "float32"))
    case.node("Mul", case.node("Mul", x, grown), case.constant(0.5, "float32"))
    yield case
    case = Case("chain silu 1x64x40x40")
    x = case.input([1, 64, 40, 40])
    case.node("Mul", x, case.node("Sigmoid", x))
    yield case
    case = Case("chain squeeze 1x72x28x28 by 1x72x1x1")
    gate = case.node("HardSigmoid", case.input([1, 72, 1, 1]), alpha=1 / 6)
    case.node("Mul", case.input([1, 72, 28, 28]), gate)
    yield case
    case = Case("chain rms_norm 64x576")
    x = case.input([64, 576])
    squared = case.node("ReduceMean", case.node("Mul", x, x), case.constant([-1], "int64"), keepdims=1)
    root = case.node("Sqrt", case.node("Add", squared, case.constant(1e-6, "float32")))
    case.node("Mul", case.node("Div", x, root), case.weight(576))
    yield case
    case = Case("chain channel_norm 1x48x20x30")
    x = case.input([1, 48, 20, 30])
    axes = case.constant([1], "int64")
    centred = case.node("Sub", x, case.node("ReduceMean", x, axes, keepdims=1))
    squared = case.node("ReduceMean", case.node("Mul", centred, centred), axes, keepdims=1)
    root = case.node("Sqrt", case.node("Add", squared, case.constant(1e-6, "float32")))
    case.node("Mul", case.node("Div", centred, root), case.weight(48, 1, 1))
    yield case
