"""Mixtures of experts of ONNX Runtime (domain com.microsoft): MoE, and QMoE, whose weights are packed.

A router gives each token (a row of the input) a score for each expert, a network of two layers. The result is
the weighted sum of the results of the `k` experts with the highest scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from tvm import relax

from kiln.arrays import Array
from kiln.extents import Extent
from kiln.frontend.onnx.body import Body, Expansion
from kiln.frontend.onnx.node import part
from kiln.frontend.onnx.packed_weights import constant, unpacked

op = relax.op


@dataclass(frozen=True)
class _ExpertLayer:
    """A layer of all experts: matrices (experts, inputs, outputs), biases (experts, 1, outputs) or none."""

    matrices: str
    biases: str | None


@dataclass(frozen=True)
class _Routes:
    """The chosen experts of each row, (rows, k), and the weights of their results."""

    experts: str
    weights: str


def _layer(body: Body, weights: str, biases: str) -> _ExpertLayer:
    """A layer of weights (experts, outputs, inputs) and biases (experts, outputs)."""
    if not biases:
        return _ExpertLayer(body.transpose(weights, [0, 2, 1]), None)
    experts, outputs = body.shape(biases)
    return _ExpertLayer(body.transpose(weights, [0, 2, 1]), body.reshape(biases, [experts, 1, outputs]))


def _linear(body: Body, x: str, layer: _ExpertLayer, chosen: str | None) -> str:
    """`x` times the matrices of all experts, or of the `chosen` one for each of its matrices, plus biases."""
    matrices, biases = layer.matrices, layer.biases
    if chosen is not None:
        matrices = body.op("Gather", matrices, chosen, axis=0)
        biases = None if biases is None else body.op("Gather", biases, chosen, axis=0)
    product = body.op("MatMul", x, matrices)
    return product if biases is None else body.op("Add", product, biases)


def _swiglu(body: Body, name: str) -> str:
    """Of pairs (g, l) along the last axis: g * sigmoid(alpha * g) * (l + beta), both within the limit."""
    alpha = float(body.attribute("activation_alpha", 1.0))
    beta = float(body.attribute("activation_beta", 0.0))
    limit = float(body.attribute("swiglu_limit", math.inf))
    *sizes, width = body.shape(name)
    pairs = body.reshape(name, [*sizes, body.symbols.simplify(width // 2), 2])
    axis = len(sizes) + 1
    gate, linear = (
        body.bind_tensor(op.squeeze(part(body.tensor(pairs), axis, index, index + 1), [axis]))
        for index in (0, 1)
    )
    if limit != math.inf:
        gate = op.minimum(gate, body.tensor(body.like(name, limit)))
        linear = op.clip(linear, -limit, limit)
    scaled = op.multiply(gate, body.tensor(body.like(name, alpha)))
    shifted = op.add(linear, body.tensor(body.like(name, beta)))
    return body.bind(op.multiply(op.multiply(gate, op.sigmoid(scaled)), shifted))


def _activated(body: Body, name: str) -> str:
    """The result of the first layer, after its activation. Raises ValueError for an unknown one."""
    kind = body.attribute("activation_type", "relu")
    fusion = int(body.attribute("swiglu_fusion", 0))
    if kind == "swiglu":
        if fusion != 1:
            raise ValueError(
                f"its attribute 'swiglu_fusion' is {fusion}, allowed: 1, both halves interleaved in FC1"
            )
        return _swiglu(body, name)
    body.accept_attributes("activation_alpha", "activation_beta", "swiglu_limit")  # of swiglu alone
    if kind == "gelu":
        return body.op("Gelu", name, approximate="tanh")
    x = body.tensor(name)
    computed = {"relu": op.nn.relu, "identity": lambda x: x, "silu": lambda x: op.multiply(x, op.sigmoid(x))}
    if kind not in computed:
        raise ValueError(
            f"its attribute 'activation_type' is {kind}, allowed: relu, gelu, silu, swiglu, identity"
        )
    return body.bind(computed[kind](x))


def _routes(body: Body, given: str | None, normalised: bool) -> _Routes:
    """The experts with the `k` highest scores of each row.

    Their weights are the softmax of their scores, or without `normalised` that of all scores, or what they
    have in `given` (rows, experts), which `normalised` divides by their sum.
    """
    scores, count = body.input(1), int(body.attribute("k", 1))
    experts = body.size(scores, -1, "the number of experts")
    if not 1 <= count <= experts:
        raise ValueError(f"its attribute 'k' is {count}, allowed: 1..{experts}, the number of experts")
    best, chosen = body.ops("TopK", 2, scores, body.const([count], "int64"), axis=-1)
    if given is None and normalised:
        return _Routes(chosen, body.op("Softmax", best, axis=-1))
    shares = body.op("Softmax", scores, axis=-1) if given is None else given
    weights = body.op("GatherElements", shares, chosen, axis=1)
    if given is not None and normalised:
        weights = body.op("Div", weights, body.op("ReduceSum", weights, body.const([1], "int64")))
    return _Routes(chosen, weights)


def _mixed(body: Body, routes: _Routes, first: _ExpertLayer, second: _ExpertLayer) -> list[str]:
    """The weighted sum of the chosen experts' results for each row.

    A few rows read the matrices of their experts. More rows, or a dynamic number of them, are multiplied by
    the matrices of all experts, which copies none.
    """
    *leading, width = body.shape(body.input(0))
    rows: Extent = body.symbols.product(leading)
    experts, count = (body.shape(name)[-1] for name in (body.input(1), routes.experts))
    x = body.reshape(body.input(0), [rows, width])
    if isinstance(rows, int) and rows * count <= experts:
        chosen = body.reshape(routes.experts, [rows * count])
        places = body.const(np.repeat(np.arange(rows), count), "int64")
        x = body.reshape(body.op("Gather", x, places, axis=0), [rows * count, 1, width])
        hidden = _activated(body, _linear(body, x, first, chosen))
        results = body.reshape(_linear(body, hidden, second, chosen), [rows, count, width])
        weights, axis = body.reshape(routes.weights, [rows, count, 1]), 1
    else:
        hidden = _activated(body, _linear(body, x, first, None))
        results = _linear(body, hidden, second, None)
        dtype = body.dtype(routes.weights)
        none = body.bind(op.zeros([rows, experts], dtype))
        shares = body.op("ScatterElements", none, routes.experts, routes.weights, axis=1)
        weights, axis = body.reshape(body.transpose(shares, [1, 0]), [experts, rows, 1]), 0
    total = body.op("ReduceSum", body.op("Mul", results, weights), body.const([axis], "int64"), keepdims=0)
    return [body.reshape(total, body.shape(body.input(0)))]


def mixture(body: Body) -> list[str]:
    """MoE: weights (experts, outputs, inputs), biases (experts, outputs)."""
    body.refuse_inputs(fc3_experts_weights=6, fc3_experts_bias=7)
    body.only("use_sparse_mixer", 0)
    routes = _routes(body, None, bool(body.attribute("normalize_routing_weights", 0)))
    first, second = (_layer(body, body.input(index), body.input(index + 1)) for index in (2, 4))
    return _mixed(body, routes, first, second)


def _dequantised(body: Body, index: int, zero_points: int, bits: int) -> Array:
    """The float32 weights (experts, outputs, inputs) of a layer whose packed integers are input `index`.

    Scales are one for each output (experts, outputs), or one for each block of inputs (…, blocks).
    """
    packed, scales = constant(body, index, "weights"), constant(body, index + 1, "scales").astype("float32")
    depth = packed.shape[-1] * 8 // bits
    block = int(body.attribute("block_size", 0)) or depth
    blocks = scales.shape[2] if scales.ndim == 3 else 1
    if block * blocks != depth or packed.dtype != np.uint8:
        raise ValueError(
            f"its weights '{body.input(index)}' have {depth} columns of {bits} bits and {blocks} blocks, "
            f"allowed: bytes, and blocks of 'block_size' ({block}) that fill the columns"
        )
    points: Array = np.full(scales.shape, 1 << (bits - 1), "float32")
    if body.has(zero_points):
        points = unpacked(constant(body, zero_points, "zero points"), bits, scales.shape[-1]).astype(
            "float32"
        )
    levels = unpacked(packed, bits, depth).reshape(*packed.shape[:2], blocks, block).astype("float32")
    sizes = (*packed.shape[:2], blocks, 1)
    values: Array = (levels - points.reshape(sizes)) * scales.reshape(sizes)
    return values.reshape(*packed.shape[:2], depth)


def quantised_mixture(body: Body) -> list[str]:
    """QMoE: MoE with weights of 2, 4 or 8 bits, two inputs for each layer's weights and one for its biases.

    ONNX Runtime's CPU always normalises the weights of the chosen experts, unless they are given.
    """
    body.only("quant_type", "int")
    body.only("use_sparse_mixer", 0)
    body.refuse_inputs(fc3_experts_weights=8, fc3_scales=9, fc3_experts_bias=10, fc3_zero_points=13)
    body.refuse_inputs(fc1_global_scale=15, fc2_global_scale=16, fc1_act_scale=17, fc2_act_scale=18)
    body.accept_attributes("weights_prepacked")  # the CPU's weights are never packed any further
    body.accept_attributes("accuracy_level", "fc3_expert_weight_bits")
    normalised, given = bool(body.attribute("normalize_routing_weights", 0)), body.has(14)
    routes = _routes(body, body.input(14) if given else None, normalised or not given)
    width = int(body.only("expert_weight_bits", 4, 2, 8))
    layers = []
    for layer, index in enumerate((2, 5)):
        bits = int(body.only(f"fc{layer + 1}_expert_weight_bits", width, 2, 4, 8))
        weights = body.const(_dequantised(body, index, 11 + layer, bits), body.dtype(body.input(0)))
        layers.append(_layer(body, weights, body.input(index + 2)))
    return _mixed(body, routes, *layers)


MICROSOFT: dict[str, Expansion] = {"MoE": mixture, "QMoE": quantised_mixture}
