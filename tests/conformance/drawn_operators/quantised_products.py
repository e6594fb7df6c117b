"""Convolutions and products of quantised tensors, between their levels: graphs in QDQ of one layer.

Inputs and results are levels of 8 or 16 bits. Types, scales, zero points, biases and weights for each channel
are drawn; the greatest sums and channels of zeros are among the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import ml_dtypes
import numpy as np

from ..onnx_nodes.cases import Array
from .case import DrawnCase
from .draw import Draw, Input, Node, Step

NAME = "QuantisedProduct"
KINDS = ("int16", "uint16", "int8", "uint8")
_OPSET = 21  # the first with 16 bits
_MOST_APART = 0.03  # the share of results between two levels that may be rounded either way


class Layer:
    """A graph that is being drawn."""

    def __init__(self, d: Draw) -> None:
        self.d = d
        self.inputs: list[Input | None] = []
        self.steps: list[Step] = []

    def const(self, value: Array | float, dtype: str | None = None) -> str:
        self.inputs.append(self.d.constant(np.asarray(value), dtype))
        return f"x{len(self.inputs) - 1}"

    def step(self, operator: str, *inputs: str, **attributes: object) -> str:
        name = f"t{len(self.steps)}"
        self.steps.append(Step(operator, list(inputs), [name], dict(attributes)))
        return name

    def levels(self, shape: tuple[int, ...], kind: str) -> Array:
        """Levels of all magnitudes, or all the same at one end."""
        info, form = ml_dtypes.iinfo(np.dtype(kind)), self.d.number(0, 9)
        if form < 2:
            return np.full(shape, (info.min, info.max)[form], kind)
        return self.d.rng.integers(info.min, info.max + 1, shape).astype(kind)

    def zero(self, kind: str, parts: tuple[int, ...] = ()) -> Array:
        info, form = ml_dtypes.iinfo(np.dtype(kind)), self.d.number(0, 4)
        middle = (info.min + info.max + 1) // 2
        if form < 2:
            return np.full(parts, middle)
        if form == 2:
            return np.full(parts, self.d.pick((info.min, info.max)))
        return np.asarray(middle + self.d.indices(parts, -info.max // 3, info.max // 3))

    def data(self, shape: tuple[int, ...], kind: str) -> tuple[str, float]:
        """A dequantised input and the greatest magnitude of its numbers."""
        value, zero = self.levels(shape, kind), self.zero(kind)
        scale = np.float32(self.d.real(0.5, 2) / ml_dtypes.iinfo(np.dtype(kind)).max)
        self.inputs.append(self.d.data(value))
        pair = self.const(scale), self.const(zero, kind)
        return self.step("DequantizeLinear", f"x{len(self.inputs) - 3}", *pair), float(scale)

    def weights(self, shape: tuple[int, ...], axis: int, kind: str) -> tuple[str, Array]:
        """Dequantised weights, and their scales."""
        value = self.levels(shape, kind)
        parts = (shape[axis],) if self.d.chance(0.6) else ()
        scale = np.asarray(
            0.3 * (0.5 + self.d.rng.random(parts)) / ml_dtypes.iinfo(np.dtype(kind)).max, "float32"
        )
        zero = self.zero(kind, parts)
        if self.d.chance(0.3):
            zero = np.full(
                parts, 0 if kind.startswith("int") else (ml_dtypes.iinfo(np.dtype(kind)).max + 1) // 2
            )
        operands = self.const(value), self.const(scale), self.const(zero, kind)
        return self.step("DequantizeLinear", *operands, axis=axis), scale

    def bias(self, count: int, scale: Array) -> str:
        """A bias of floats, or of int32 with the scale of the sums."""
        if self.d.chance(0.4):
            return self.const(self.d.values((count,), "float32", 1.0))
        levels = self.d.rng.integers(-(1 << 15), 1 << 15, count).astype("int32")
        return self.step("DequantizeLinear", self.const(levels), self.const(scale.astype("float32")), axis=0)

    def result(self, value: str, kind: str, spread: float) -> str:
        """The levels of a result whose numbers are as large as `spread`."""
        if self.d.chance(0.3):
            value = self.step("Relu", value)
        scale = self.const(np.float32(spread * self.d.real(0.5, 3) / np.iinfo(kind).max))
        return self.step("QuantizeLinear", value, scale, self.const(self.zero(kind), kind))


def quantised_product(d: Draw) -> Node:
    """A graph of one layer: Conv, ConvTranspose, Gemm, or MatMul by weights or of two tensors."""
    d.opset = _OPSET
    layer = Layer(d)
    kind, weights_kind = d.pick((*KINDS[:2], *KINDS)), d.pick(("int8", *KINDS))
    layer_of = d.pick((_conv, _conv, _conv_transpose, _gemm, _matmul, _matmul, _pair))
    value, spread = layer_of(layer, kind, weights_kind)
    result = layer.result(value, d.pick((kind, kind, *KINDS)), spread)
    return Node(NAME, layer.inputs, {}, 1, d.opset, steps=layer.steps, results=[result])


def _conv(layer: Layer, kind: str, weights_kind: str) -> tuple[str, float]:
    d, rank = layer.d, layer.d.number(1, 3)
    groups = d.pick((1, 1, 2, 5))
    deep = d.pick((1, 3, 40)) if groups < 5 else 1
    shape = (d.number(1, 2), groups * deep, *(d.size(3, 9 if rank < 3 else 5) for _ in range(rank)))
    kernel = [d.number(1, 3) for _ in range(rank)]
    outputs = groups * d.pick((1, 3, 8, 17))
    x, scale = layer.data(shape, kind)
    weights, scales = layer.weights((outputs, deep, *kernel), 0, weights_kind)
    bias = [layer.bias(outputs, scale * scales)] if d.chance(0.6) else []
    pads = [d.number(0, 1) for _ in range(2 * rank)]
    window = {"strides": [d.number(1, 2) for _ in range(rank)], "pads": pads, "group": groups}
    return layer.step("Conv", x, weights, *bias, **window), 0.3 * prod(kernel) * deep


def _conv_transpose(layer: Layer, kind: str, weights_kind: str) -> tuple[str, float]:
    d, rank = layer.d, layer.d.number(1, 3)
    groups, deep, outputs = d.pick((1, 1, 2)), d.pick((1, 4)), d.pick((1, 5))
    shape = (1, groups * deep, *(d.size(3, 6 if rank < 3 else 4) for _ in range(rank)))
    kernel = [d.number(2, 3) for _ in range(rank)]
    x, scale = layer.data(shape, kind)
    weights, scales = layer.weights((groups * deep, outputs, *kernel), 1, weights_kind)
    one = scales if groups == 1 else scales.reshape(-1)[0]
    bias = [layer.bias(groups * outputs, scale * one)] if d.chance(0.6) else []
    window = {"strides": [d.number(1, 2) for _ in range(rank)], "group": groups}
    return layer.step("ConvTranspose", x, weights, *bias, **window), 0.3 * prod(kernel) * deep


def _gemm(layer: Layer, kind: str, weights_kind: str) -> tuple[str, float]:
    d, rows, depth, columns = (
        layer.d,
        layer.d.size(1, 9),
        layer.d.pick((2, 16, 65, 300)),
        layer.d.number(1, 40),
    )
    turned = d.number(0, 1)
    x, scale = layer.data((rows, depth), kind)
    shape = (columns, depth) if turned else (depth, columns)
    weights, scales = layer.weights(shape, 1 - turned, weights_kind)
    bias = [layer.bias(columns, scale * scales)] if d.chance(0.6) else []
    return layer.step("Gemm", x, weights, *bias, transB=turned), 0.3 * depth


def _matmul(layer: Layer, kind: str, weights_kind: str) -> tuple[str, float]:
    d, depth, columns = layer.d, layer.d.pick((1, 7, 33, 130)), layer.d.number(1, 33)
    before = tuple(d.size(1, 5) for _ in range(d.number(1, 3)))
    x, _ = layer.data((*before, depth), kind)
    batch = before[:-1][-1:] if d.chance(0.2) and not d.sizes[1:] else ()
    weights, _ = layer.weights((*batch, depth, columns), len(batch) + 1, weights_kind)
    return layer.step("MatMul", x, weights), 0.3 * depth


def _pair(layer: Layer, kind: str, weights_kind: str) -> tuple[str, float]:
    d, depth = layer.d, layer.d.pick((1, 7, 33, 130))
    batch = tuple(d.size(1, 3) for _ in range(d.number(0, 2)))
    x, _ = layer.data((*batch, d.number(1, 9), depth), kind)
    y, _ = layer.data((*batch, depth, d.number(1, 20)), weights_kind)
    return layer.step("MatMul", x, y), 1.0 * depth


def compare_products(case: DrawnCase, found: Sequence[Array]) -> str:
    """The difference of levels from ONNX Runtime's, in words; empty if roundings explain it.

    Sums in float32 move some values to the other side of the middle between two levels.
    """
    for number, (ours, theirs) in enumerate(zip(found, case.outputs, strict=True)):
        if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
            return f"output {number}: {ours.dtype}{list(ours.shape)}, not {theirs.dtype}{list(theirs.shape)}"
        apart = np.abs(ours.astype("int64") - theirs.astype("int64"))
        if apart.max(initial=0) > 1 or np.count_nonzero(apart) > 1 + _MOST_APART * apart.size:
            return f"output {number}: {np.count_nonzero(apart)} of {apart.size} differ, by {apart.max()}"
    return ""
