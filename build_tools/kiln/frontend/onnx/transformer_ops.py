"""Fused operators of exported transformers, except attention: activations, norms, embeddings, products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from kiln.frontend.onnx.body import Body, Expansion
from kiln.frontend.onnx.node import part

op = relax.op


def scalar(value: float, dtype: str) -> Any:
    """A Relax constant of no axes."""
    return relax.const(np.asarray(value, dtype), dtype)


def _tanh_gelu(x: Any, dtype: str) -> Any:
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
    cube = op.multiply(op.multiply(x, x), x)
    inner = op.add(x, op.multiply(cube, scalar(0.044715, dtype)))
    half = op.multiply(x, scalar(0.5, dtype))
    return op.multiply(
        half, op.add(op.tanh(op.multiply(inner, scalar(np.sqrt(2 / np.pi), dtype))), scalar(1, dtype))
    )


def _activation(kind: str) -> Expansion:
    """Gelu, BiasGelu, FastGelu and QuickGelu; the second input, if there is one, is a bias."""

    def convert(body: Body) -> list[str]:
        name = body.input(0)
        x, dtype = body.tensor(name), body.dtype(name)
        if body.has(1):
            x = body.tensor(body.bind(op.add(x, body.tensor(body.input(1)))))
        if kind == "tanh":
            return [body.bind(_tanh_gelu(x, dtype))]
        if kind == "sigmoid":
            slope = scalar(float(body.attribute("alpha", 1.702)), dtype)
            return [body.bind(op.multiply(x, op.sigmoid(op.multiply(x, slope))))]
        return [body.bind(op.nn.gelu(x))]

    return convert


def bias_add(body: Body) -> list[str]:
    """com.microsoft.BiasAdd: X + bias + skip."""
    first = op.add(body.tensor(body.input(0)), body.tensor(body.input(1)))
    return [body.bind(op.add(first, body.tensor(body.input(2))))]


def bias_split_gelu(body: Body) -> list[str]:
    """com.microsoft.BiasSplitGelu: of X + bias, the first half times GELU of the second."""
    total = body.bind(op.add(body.tensor(body.input(0)), body.tensor(body.input(1))))
    width = body.size(total, -1, "the last size") // 2
    last = body.rank(total) - 1
    first_half = op.strided_slice(body.tensor(total), [last], [0], [width])
    second_half = op.strided_slice(body.tensor(total), [last], [width], [2 * width])
    return [body.bind(op.multiply(first_half, op.nn.gelu(second_half)))]


def _factor_axes(rank: int, matrix: bool, batch: bool) -> list[int]:
    """The axes of a factor of FusedMatMul: the first axis goes last but one, then the matrix is turned."""
    order = list(range(rank))
    if batch:
        order = [*order[1:-1], 0, order[-1]]
    if matrix:
        order[-2:] = order[:-3:-1]
    return order


def fused_matmul(body: Body) -> list[str]:
    """com.microsoft.FusedMatMul: alpha * A @ B, each factor transposed on request."""
    factors = []
    for index, side in enumerate("AB"):
        name = body.input(index)
        rank = body.rank(name)
        turned = bool(body.attribute(f"trans{side}", 0)) and rank > 1
        batch = bool(body.attribute(f"transBatch{side}", 0)) and rank > 2
        order = _factor_axes(rank, turned, batch)
        factors.append(body.transpose(name, order) if order != sorted(order) else name)
    product = body.op("MatMul", *factors)
    alpha = float(body.attribute("alpha", 1.0))
    return [product if alpha == 1.0 else body.op("Mul", product, body.like(product, alpha))]


def rms_norm(body: Body, name: str, weight: str, axes: Sequence[int], epsilon: float) -> str:
    """x / sqrt(mean(x^2) + epsilon) * weight over the last axes."""
    if len(axes) == body.rank(name):  # for which TVM 0.27's kernel ends in an error
        rows = body.bind(op.expand_dims(body.tensor(name), [0]))
        weights = body.bind(op.broadcast_to(body.tensor(weight), body.tensor(name).ty.shape))
        normal = rms_norm(body, rows, weights, [axis + 1 for axis in axes], epsilon)
        return body.bind(op.squeeze(body.tensor(normal), [0]))
    return body.bind(op.nn.rms_norm(body.tensor(name), body.tensor(weight), list(axes), epsilon))


def _inverse_deviation(body: Body, name: str, axes: Sequence[int], epsilon: float) -> str:
    """1 / sqrt(mean(x^2) + epsilon)."""
    x = body.tensor(name)
    mean = op.mean(op.multiply(x, x), list(axes), keepdims=True)
    return body.bind(op.rsqrt(op.add(mean, scalar(epsilon, body.dtype(name)))))


def simplified_layer_norm(body: Body) -> list[str | None]:
    """SimplifiedLayerNormalization: RMS normalisation over the axes from `axis` on."""
    name = body.input(0)
    rank = body.rank(name)
    axes = list(range(int(body.attribute("axis", -1)) % rank, rank))
    epsilon = float(body.attribute("epsilon", 1e-5))
    body.only("stash_type", 1)
    deviation = _inverse_deviation(body, name, axes, epsilon) if body.wants(1) else None
    return [rms_norm(body, name, body.input(1), axes, epsilon), deviation]


def layer_norm(body: Body) -> list[str]:
    """LayerNormalization of ONNX Runtime, which models of opsets below 17 contain."""
    inputs = [body.input(index) for index in range(3) if body.has(index)]
    epsilon = body.attribute("epsilon", 1e-5)
    body.only("stash_type", 1)
    return [body.op("LayerNormalization", *inputs, axis=body.attribute("axis", -1), epsilon=epsilon)]


def group_norm(body: Body) -> list[str]:
    """GroupNormalization of opsets 18 to 20, whose scale and bias are one number for each group."""
    groups, x = int(body.required("num_groups")), body.input(0)
    channels = body.size(x, 1, "the number of channels")
    if groups < 1 or channels % groups:
        raise ValueError(f"its attribute 'num_groups' is {groups}, allowed: a divisor of {channels} channels")
    rows = []
    for index in (1, 2):
        if body.shape(body.input(index)) != [groups]:
            raise ValueError(f"its input '{body.input(index)}' needs one number for each of {groups} groups")
        column = op.reshape(body.tensor(body.input(index)), [groups, 1])
        rows.append(
            body.reshape(body.bind(op.broadcast_to(column, [groups, channels // groups])), [channels])
        )
    epsilon = body.attribute("epsilon", 1e-5)
    return [body.op("GroupNormalization", x, *rows, num_groups=groups, epsilon=epsilon)]


def _sum_with_skip(body: Body, bias: int) -> str:
    """The sum of input, skip and an optional bias."""
    total = body.bind(op.add(body.tensor(body.input(0)), body.tensor(body.input(1))))
    return body.bind(op.add(body.tensor(total), body.tensor(body.input(bias)))) if body.has(bias) else total


def skip_layer_norm(body: Body) -> list[str | None]:
    """com.microsoft.SkipLayerNormalization: LayerNormalization of input + skip + bias."""
    total = _sum_with_skip(body, 4)
    inputs = [total, body.input(2), *([body.input(3)] if body.has(3) else [])]
    epsilon = body.attribute("epsilon", 1e-12)
    return [body.op("LayerNormalization", *inputs, axis=-1, epsilon=epsilon), None, None, total]


def skip_simplified_layer_norm(body: Body) -> list[str | None]:
    """com.microsoft.SkipSimplifiedLayerNormalization: RMS normalisation of input + skip + bias."""
    total = _sum_with_skip(body, 3)
    axes = [body.rank(total) - 1]
    epsilon = float(body.attribute("epsilon", 1e-12))
    return [rms_norm(body, total, body.input(2), axes, epsilon), None, None, total]


def embed_layer_norm(body: Body) -> list[str]:
    """com.microsoft.EmbedLayerNormalization: normalised sum of word, position and segment embeddings."""
    ids, segments, words, positions, kinds, gamma, beta, mask, position_ids = (
        body.input(index) for index in range(9)
    )
    epsilon = body.attribute("epsilon", 1e-12)
    body.accept_attributes("mask_index_type")  # for shape inference
    total = body.op("Gather", words, ids, axis=0)
    if position_ids:
        placed = body.op("Gather", positions, position_ids, axis=0)
    else:
        placed = _first_positions(body, ids, positions)
    total = body.op("Add", total, placed)
    if segments:
        total = body.op("Add", total, body.op("Gather", kinds, segments, axis=0))
    result = body.op("LayerNormalization", total, gamma, beta, axis=-1, epsilon=epsilon)
    return [result, _mask_index(body, ids, mask), total]


def _first_positions(body: Body, ids: str, table: str) -> str:
    """The first rows of a table of positions, one for each token of `ids` (batch, length)."""
    length = body.shape(ids)[1]
    if not body.symbols.holds(length <= body.size(table, 0, "the number of positions")):
        raise ValueError(f"its input of {length} tokens is longer than '{table}' for some sizes")
    return body.bind(part(body.tensor(table), 0, 0, length))


def _mask_index(body: Body, ids: str, mask: str) -> str:
    """The number of valid tokens of each row of `mask` (batch, length); zeros without a mask."""
    if not mask:
        return body.bind(op.full([body.shape(ids)[0]], relax.const(0, "int32"), "int32"))
    valid = op.equal(body.tensor(mask), relax.const(1, body.dtype(mask)))
    return body.bind(op.sum(op.astype(valid, "int32"), [1]))


def quantized_embed_layer_norm(body: Body) -> list[str]:
    """com.microsoft.QEmbedLayerNormalization: EmbedLayerNormalization of quantised tables, gamma and beta."""
    ids, segments = body.input(0), body.input(1)

    def floats(name: str, number: int) -> str:
        """Elements of quantised input `number`, counted from the table of words, as floats."""
        return body.op("DequantizeLinear", name, body.input(8 + number), body.input(13 + number))

    total = floats(body.op("Gather", body.input(2), ids, axis=0), 0)
    total = body.op("Add", total, floats(_first_positions(body, ids, body.input(3)), 1))
    if segments:
        total = body.op("Add", total, floats(body.op("Gather", body.input(4), segments, axis=0), 2))
    epsilon = body.attribute("epsilon", 1e-12)
    gamma, beta = floats(body.input(5), 3), floats(body.input(6), 4)
    result = body.op("LayerNormalization", total, gamma, beta, axis=-1, epsilon=epsilon)
    return [result, _mask_index(body, ids, body.input(7))]


MICROSOFT: dict[str, Expansion] = {
    "BiasAdd": bias_add,
    "BiasGelu": _activation("erf"),
    "BiasSplitGelu": bias_split_gelu,
    "EmbedLayerNormalization": embed_layer_norm,
    "FastGelu": _activation("tanh"),
    "FusedMatMul": fused_matmul,
    "Gelu": _activation("erf"),
    "GroupNormalization": group_norm,
    "LayerNormalization": layer_norm,
    "QEmbedLayerNormalization": quantized_embed_layer_norm,
    "QuickGelu": _activation("sigmoid"),
    "SimplifiedLayerNormalization": simplified_layer_norm,
    "SkipLayerNormalization": skip_layer_norm,
    "SkipSimplifiedLayerNormalization": skip_simplified_layer_norm,
    "TransposeMatMul": fused_matmul,
}
