"""Operators between DequantizeLinear and QuantizeLinear: graphs in QDQ of one operator.

Inputs and results are levels of 8 or 16 bits; constants are floats, or weights of 4, 8 or 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from .draw import Draw, Maker, Node
from .quantised_products import KINDS, Layer

PREFIX = "Quantised"
_OPSET = 21
# Adds an operator on the dequantised tensor of a shape; returns its result, and how great that may be.
Operator = Callable[[Layer, str, str, tuple[int, ...]], tuple[str, float]]
_MOST = 4.0  # of the numbers of an input


def _shape(d: Draw, least: int = 1, most: int = 5) -> tuple[int, ...]:
    return tuple(d.size(1, 6) for _ in range(d.number(least, most)))


def _one(operator: str, spread: float, **attributes: Any) -> Operator:
    def made(layer: Layer, x: str, kind: str, shape: tuple[int, ...]) -> tuple[str, float]:
        drawn = {
            key: value(layer.d, shape) if callable(value) else value for key, value in attributes.items()
        }
        return layer.step(operator, x, **drawn), spread

    return made


def _positive(operator: str, spread: float, least: float = 0.0) -> Operator:
    def made(layer: Layer, x: str, kind: str, shape: tuple[int, ...]) -> tuple[str, float]:
        value = layer.step("Abs", x)
        value = layer.step("Add", value, layer.const(least, "float32")) if least else value
        return layer.step(operator, value), spread

    return made


def _two(operator: str, spread: float) -> Operator:
    """Of the tensor and another one, which broadcasts, of another type and scale; or of a constant."""

    def made(layer: Layer, x: str, kind: str, shape: tuple[int, ...]) -> tuple[str, float]:
        d = layer.d
        other = tuple(1 if d.chance(0.2) else size for size in shape)
        other = other[d.number(0, len(shape)) :] if d.chance(0.3) else other
        form = d.number(0, 3)
        if form == 0:
            y = layer.const(d.values(other, "float32", 1.0))
        elif form == 1:
            y, _ = layer.weights(other or (1,), 0, d.pick(KINDS))
        else:
            y, _ = layer.data(other, d.pick((kind, kind, *KINDS)))
        if operator == "Div":
            y = layer.step("Add", layer.step("Abs", y), layer.const(0.5, "float32"))
        order = (y, x) if operator in ("Sub", "Add", "Mul", "Max") and d.chance(0.3) else (x, y)
        return layer.step(operator, *order), spread

    return made


def _where(layer: Layer, x: str, kind: str, shape: tuple[int, ...]) -> tuple[str, float]:
    chosen = layer.const(layer.d.rng.random(shape) < 0.5)
    y = layer.data(shape, kind)[0] if layer.d.chance(0.6) else layer.const(-2.0, "float32")
    return layer.step("Where", chosen, x, y), _MOST


def _concat(layer: Layer, x: str, kind: str, shape: tuple[int, ...]) -> tuple[str, float]:
    parts = [
        x,
        *(layer.data(shape, layer.d.pick((kind, kind, *KINDS)))[0] for _ in range(layer.d.number(1, 2))),
    ]
    return layer.step("Concat", *parts, axis=layer.d.axis(len(shape))), _MOST


def _pad(layer: Layer, x: str, kind: str, shape: tuple[int, ...]) -> tuple[str, float]:
    d = layer.d
    mode = d.pick(("constant", "edge", "reflect"))
    widths = [
        d.number(0, 2 if mode != "reflect" else min(2, shape[axis % len(shape)] - 1))
        for axis in range(2 * len(shape))
    ]
    more = [layer.const(d.real(-3, 3), "float32")] if mode == "constant" and d.chance() else []
    return layer.step("Pad", x, layer.const(widths, "int64"), *more, mode=mode), _MOST


def _resize(layer: Layer, x: str, kind: str, shape: tuple[int, ...]) -> tuple[str, float]:
    d = layer.d
    scales = [1.0, 1.0, *(d.pick((0.5, 1.0, 2.0, 1.7)) for _ in shape[2:])]
    mode = d.pick(("nearest", "linear", "cubic") if len(shape) == 4 else ("nearest", "linear"))
    how = d.pick(("half_pixel", "asymmetric", "align_corners"))
    given = (layer.const(np.float32(scales)),)
    return layer.step("Resize", x, "", *given, mode=mode, coordinate_transformation_mode=how), _MOST


def _slice(layer: Layer, x: str, kind: str, shape: tuple[int, ...]) -> tuple[str, float]:
    axis = layer.d.axis(len(shape))
    ends = [layer.const([value], "int64") for value in (0, 1 << 40, axis, layer.d.pick((1, 2)))]
    return layer.step("Slice", x, *ends), _MOST


def _gather(layer: Layer, x: str, kind: str, shape: tuple[int, ...]) -> tuple[str, float]:
    axis = layer.d.axis(len(shape))
    chosen = layer.const(layer.d.rng.integers(0, shape[axis], (2, 3)), "int64")
    return layer.step("Gather", x, chosen, axis=axis), _MOST


def _table(layer: Layer, x: str, kind: str, shape: tuple[int, ...]) -> tuple[str, float]:
    """Rows of a table of weights, of which indices are data; x is added."""
    d = layer.d
    table, _ = layer.weights((9, shape[-1]), d.number(0, 1), d.pick(("int4", "uint4", *KINDS)))
    layer.inputs.append(d.data(d.rng.integers(0, 9, shape[:-1])))
    return layer.step("Add", x, layer.step("Gather", table, f"x{len(layer.inputs) - 1}")), _MOST


def _split(layer: Layer, x: str, kind: str, shape: tuple[int, ...]) -> tuple[str, float]:
    axis = layer.d.axis(len(shape))
    if shape[axis] < 2:
        return layer.step("Identity", x), _MOST
    sizes = layer.const([1, shape[axis] - 1], "int64")
    layer.step("Split", x, sizes, axis=axis)
    layer.steps[-1].outputs.append("rest")
    return "rest", _MOST


def _moved(operator: str, **more: Any) -> Operator:
    def made(layer: Layer, x: str, kind: str, shape: tuple[int, ...]) -> tuple[str, float]:
        operands = [layer.const(value(layer.d, shape), "int64") for value in more.values()]
        return layer.step(operator, x, *operands), _MOST

    return made


def _window(d: Draw, shape: tuple[int, ...]) -> dict[str, Any]:
    rank = len(shape) - 2
    kernel = [d.number(1, min(3, size)) for size in shape[2:]]
    pads = [d.number(0, min(1, size - 1)) for size in kernel * 2]
    return {"kernel_shape": kernel, "strides": [d.number(1, 2) for _ in range(rank)], "pads": pads}


def _pool(operator: str) -> Operator:
    def made(layer: Layer, x: str, kind: str, shape: tuple[int, ...]) -> tuple[str, float]:
        more = {"count_include_pad": layer.d.number(0, 1)} if operator == "AveragePool" else {}
        more |= {"ceil_mode": layer.d.number(0, 1)}
        return layer.step(operator, x, **_window(layer.d, shape), **more), _MOST * (
            1 + 3 * (operator == "LpPool")
        )

    return made


def _reduced(operator: str) -> Operator:
    def made(layer: Layer, x: str, kind: str, shape: tuple[int, ...]) -> tuple[str, float]:
        d = layer.d
        axes = sorted({d.axis(len(shape)) % len(shape) for _ in range(d.number(1, 2))})
        more = (layer.const(axes, "int64"),)
        spread = _MOST * (20 if operator == "ReduceSum" else 1)
        return layer.step(operator, x, *more, keepdims=d.number(0, 1)), spread

    return made


def _norm(operator: str) -> Operator:
    def made(layer: Layer, x: str, kind: str, shape: tuple[int, ...]) -> tuple[str, float]:
        d = layer.d
        if operator == "LayerNormalization":
            axis = d.number(-len(shape), -1)
            sizes: tuple[int, ...] = shape[axis:]
            more = {"axis": axis}
        else:
            sizes, more = shape[1:2], {"num_groups": 1} if operator == "GroupNormalization" else {}
        pair = [layer.const(d.values(sizes, "float32", 0.5)) for _ in range(2)]
        if d.chance(0.4):
            pair[0], _ = layer.weights(sizes, 0, d.pick(("int8", "uint8")))
        return layer.step(operator, x, *pair, **more), 2.0

    return made


def _batch_norm(layer: Layer, x: str, kind: str, shape: tuple[int, ...]) -> tuple[str, float]:
    d = layer.d
    rows = [layer.const(d.values(shape[1:2], "float32", 0.5)) for _ in range(3)]
    return layer.step(
        "BatchNormalization", x, *rows, layer.const(0.5 + d.rng.random(shape[1:2]), "float32")
    ), 4.0


def _conv(layer: Layer, x: str, kind: str, shape: tuple[int, ...]) -> tuple[str, float]:
    """With weights of 4 bits."""
    d = layer.d
    kernel = [d.number(1, min(3, size)) for size in shape[2:]]
    weights, _ = layer.weights((3, shape[1], *kernel), 0, d.pick(("int4", "uint4")))
    return layer.step("Conv", x, weights), 0.3 * shape[1] * np.prod(kernel)


def _product(layer: Layer, x: str, kind: str, shape: tuple[int, ...]) -> tuple[str, float]:
    """With weights of 4 bits."""
    weights, _ = layer.weights((shape[-1], 7), 1, layer.d.pick(("int4", "uint4")))
    return layer.step("MatMul", x, weights), 0.3 * shape[-1]


def _recurrent(operator: str, gates: int) -> Operator:
    def made(layer: Layer, x: str, kind: str, shape: tuple[int, ...]) -> tuple[str, float]:
        hidden, d = 4, layer.d
        kinds = d.pick(("int8", "uint8", "int16"))
        w, _ = layer.weights((1, gates * hidden, shape[-1]), 1, kinds)
        r, _ = layer.weights((1, gates * hidden, hidden), 1, kinds)
        layer.step(operator, x, w, r, hidden_size=hidden)
        return layer.steps[-1].outputs[0], 1.0

    return made


_UP_TO_ONE = ("Sigmoid", "Tanh", "Erf", "Softsign", "HardSigmoid", "Sin", "Cos", "Sign")
_OF_ONE = (
    "HardSwish", "Relu", "Abs", "Neg", "Elu", "Selu", "Softplus", "Mish", "Floor", "Ceil", "Round",
    "Identity", "Flatten", "ThresholdedRelu",
)  # fmt: skip


def _pow(layer: Layer, x: str, kind: str, shape: tuple[int, ...]) -> tuple[str, float]:
    return layer.step("Pow", x, layer.const(layer.d.pick((2.0, 3.0)), "float32")), 9.0


def _order(d: Draw, shape: tuple[int, ...]) -> list[int]:
    return [int(axis) for axis in d.rng.permutation(len(shape))]


_ANY: dict[str, Operator] = {
    **{name: _one(name, 1.0) for name in _UP_TO_ONE},
    **{name: _one(name, _MOST) for name in _OF_ONE},
    "Exp": _one("Exp", 20.0),
    "Gelu": _one("Gelu", _MOST, approximate=lambda d, _: d.pick(("none", "tanh"))),
    "LeakyRelu": _one("LeakyRelu", _MOST, alpha=lambda d, _: d.real(-1, 1)),
    "Softmax": _one("Softmax", 1.0, axis=lambda d, shape: d.axis(len(shape))),
    "LogSoftmax": _one("LogSoftmax", 8.0, axis=lambda d, shape: d.axis(len(shape))),
    "Sqrt": _positive("Sqrt", 2.0),
    "Log": _positive("Log", 2.0, 0.3),
    "Reciprocal": _positive("Reciprocal", 2.0, 0.5),
    "Clip": lambda layer, x, kind, shape: (
        layer.step("Clip", x, layer.const(-1.0, "float32"), layer.const(layer.d.real(0, 3), "float32")), 3.0),
    "Pow": _pow,
    "Sum": lambda layer, x, kind, shape: (
        layer.step("Sum", x, layer.data(shape, kind)[0], layer.data(shape, kind)[0]), 3 * _MOST),
    **{name: _two(name, spread) for name, spread in
       (("Add", 8.0), ("Sub", 8.0), ("Mul", 8.0), ("Div", 8.0), ("Min", _MOST), ("Max", _MOST))},
    "PRelu": lambda layer, x, kind, shape: (
        layer.step("PRelu", x, layer.weights((shape[-1],), 0, layer.d.pick(KINDS))[0]), _MOST),
    "Where": _where, "Concat": _concat, "Pad": _pad, "Slice": _slice, "Gather": _gather, "Split": _split,
    "Transpose": _one("Transpose", _MOST, perm=_order),
    "Reshape": _moved("Reshape", shape=lambda d, shape: [-1, shape[-1]]),
    "Unsqueeze": _moved("Unsqueeze", axes=lambda d, shape: [1]),
    "Tile": _moved("Tile", repeats=lambda d, shape: [d.number(1, 2) for _ in shape]),
    "Expand": _moved("Expand", shape=lambda d, shape: [2, *shape]),
    **{name: _reduced(name) for name in ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2")},
    "LayerNormalization": _norm("LayerNormalization"),
    "Table": _table, "ProductOf4Bits": _product,
}  # fmt: skip
# On images of one to three axes.
_IMAGES: dict[str, Operator] = {
    **{name: _norm(name) for name in ("InstanceNormalization", "GroupNormalization")},
    **{name: _pool(name) for name in ("AveragePool", "MaxPool", "LpPool")},
    **{name: _one(name, _MOST) for name in ("GlobalAveragePool", "GlobalMaxPool")},
    "BatchNormalization": _batch_norm, "Resize": _resize, "ConvOf4Bits": _conv,
}  # fmt: skip
_OTHERS: dict[str, tuple[Operator, Callable[[Draw], tuple[int, ...]]]] = {
    "DepthToSpace": (
        _one("DepthToSpace", _MOST, blocksize=2, mode=lambda d, _: d.pick(("DCR", "CRD"))),
        lambda d: (1, 8, d.size(1, 4), d.size(1, 4)),
    ),
    "SpaceToDepth": (_one("SpaceToDepth", _MOST, blocksize=2), lambda d: (1, 2, 4, 6)),
    "LSTM": (_recurrent("LSTM", 4), lambda d: (d.size(1, 5), d.size(1, 3), d.number(2, 6))),
    "GRU": (_recurrent("GRU", 3), lambda d: (d.size(1, 5), d.size(1, 3), d.number(2, 6))),
}


def _node(operator: Operator, shape_of: Callable[[Draw], tuple[int, ...]], d: Draw) -> Node:
    d.opset = _OPSET
    layer = Layer(d)
    kind, shape = d.pick((*KINDS, "int8", "uint8")), shape_of(d)
    x, _ = layer.data(shape, kind)
    value, spread = operator(layer, x, kind, shape)
    result = layer.result(value, d.pick((kind, kind, *KINDS)), spread)
    return Node(PREFIX, layer.inputs, {}, 1, d.opset, steps=layer.steps, results=[result])


def _image(d: Draw) -> tuple[int, ...]:
    return (d.number(1, 2), d.number(1, 5), *(d.size(2, 6) for _ in range(d.number(1, 3))))


MAKERS: dict[str, Maker] = {
    **{PREFIX + name: partial(_node, made, _shape) for name, made in _ANY.items()},
    **{PREFIX + name: partial(_node, made, _image) for name, made in _IMAGES.items()},
    **{PREFIX + name: partial(_node, made, shape_of) for name, (made, shape_of) in _OTHERS.items()},
}
