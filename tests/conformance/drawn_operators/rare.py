"""Attributes and inputs that few files have, of operators whose usual forms other modules draw."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from .classical import tree_regressor
from .contrib import embed_layer_normalization
from .contrib_attention import contrib_rotary, group_query_attention, packed_attention
from .draw import Draw, Input, Maker, Node
from .elementwise import operands
from .experts import quantised_mixture
from .products import window
from .quantised import MICROSOFT, matmul_nbits, scale
from .reductions import top_k


def _named(node: Node, name: str, **attributes: Any) -> Node:
    """The node as one of operator `name`, with more attributes."""
    node.operator = name
    node.attributes |= attributes
    return node


def quantized_type(d: Draw) -> Node:
    """The type of the result is an attribute in place of a zero point."""
    d.opset = d.pick((21, 23, 24))
    shape = d.shape(1, 3)
    kind = d.pick((TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16))
    more = d.some(precision=1) if d.opset >= 23 else {}
    scales = (shape[-1],) if d.chance() and d.open_at != len(d.sizes) - 1 else ()
    axis = {"axis": -1} if scales else {"axis": 0}
    return d.node(
        d.data(d.values(shape)), scale(d, scales), name="QuantizeLinear", output_dtype=kind, **axis, **more
    )


def dequantized_type(d: Draw) -> Node:
    d.opset = d.pick((23, 24))
    x = d.data(d.values(d.shape(0, 3), d.pick(("int8", "uint8", "int16"))))
    kind = d.pick((TensorProto.FLOAT16, TensorProto.FLOAT))
    return d.node(x, scale(d), name="DequantizeLinear", output_dtype=kind)


def window_type(d: Draw) -> Node:
    d.opset = d.pick((17, 20))
    kind = d.pick((TensorProto.DOUBLE, TensorProto.FLOAT, TensorProto.INT32))
    return _named(window(d), d.pick(("HannWindow", "HammingWindow", "BlackmanWindow")), output_datatype=kind)


def reshape_with_zeros(d: Draw) -> Node:
    d.opset = d.number(14, 24)
    shape = d.shape(2, 4)
    target = [-1, shape[1], *shape[2:]] if d.chance() else [*shape[:1], -1]
    return d.node(d.data(d.values(shape)), d.constant(target, "int64"), name="Reshape", allowzero=1)


def resize_by_policy(d: Draw) -> Node:
    d.opset = d.number(18, 24)
    shape = (d.size(1, 2), d.number(1, 2), d.size(3, 7), d.size(3, 7))
    attributes = {"axes": [2, 3], "keep_aspect_ratio_policy": d.pick(("not_larger", "not_smaller"))}
    attributes |= d.some(
        mode=d.pick(("nearest", "linear")),
        coordinate_transformation_mode=d.pick(("asymmetric", "half_pixel")),
    )
    sizes = d.constant([d.number(2, 9), d.number(2, 9)], "int64")
    return d.node(d.data(d.values(shape)), None, None, sizes, name="Resize", **attributes)


def unordered(d: Draw) -> Node:
    d.opset = d.number(11, 24)
    return _named(top_k(d), "TopK", sorted=1)


def fused_conv_sum(d: Draw) -> Node:
    shape = (d.size(1, 2), d.number(1, 3), d.size(3, 6), d.size(3, 6))
    outputs = d.number(1, 3)
    bias = d.constant(d.values((outputs,))) if d.chance() else None
    return d.node(
        d.data(d.values(shape)), d.constant(d.values((outputs, shape[1], 3, 3))), bias,
        d.data(d.values((shape[0], outputs, *shape[2:]))), domain=MICROSOFT, name="FusedConv",
        kernel_shape=[3, 3], pads=[1, 1, 1, 1], activation=d.pick(("Relu", "Tanh")),
    )  # fmt: skip


def fused_gemm_turned(d: Draw) -> Node:
    m, k, n, left, right = d.size(), d.size(1, 8), d.size(), d.number(0, 1), d.number(0, 1)
    kind = d.pick(("HardSigmoid", "Relu", "LeakyRelu"))
    more = {
        "HardSigmoid": {"activation_alpha": 0.3, "activation_beta": 0.4},
        "LeakyRelu": {"activation_alpha": 0.2},
    }
    return d.node(
        d.data(d.values((k, m) if left else (m, k))), d.either(d.values((n, k) if right else (k, n))),
        d.either(d.values((n,))), domain=MICROSOFT, name="FusedGemm", transA=left, transB=right,
        activation=kind, **more.get(kind, {}),
    )  # fmt: skip


def batches_turned(d: Draw) -> Node:
    m, k, n, batch = d.size(), d.size(1, 8), d.size(), d.size(1, 3)
    batches = (batch, d.number(1, 3)) if d.chance() else (batch,)
    left, right, turned_left, turned_right = (d.number(0, 1) for _ in range(4))
    rows, columns = ((k, m) if turned_left else (m, k)), ((n, k) if turned_right else (k, n))
    first = (rows[0], *batches, rows[1]) if left else (*batches, *rows)
    second = (columns[0], *batches, columns[1]) if right else (*batches, *columns)
    return d.node(
        *operands(d, d.values(first), d.values(second)), domain=MICROSOFT, name="FusedMatMul",
        transBatchA=left, transBatchB=right, transA=turned_left, transB=turned_right, alpha=d.real(-1, 2),
    )  # fmt: skip


def bidirectional_queries(d: Draw) -> Node:
    node = group_query_attention(d)
    if node.steps:
        raise ValueError("lengths of their own")
    node.attributes.pop("local_window_size", None)
    return _named(node, "GroupQueryAttention", causal=0)


def filtered_attention(d: Draw) -> Node:
    return _named(packed_attention(d), "Attention", mask_filter_value=-3.0)


def scaled_rotary(d: Draw) -> Node:
    """Rotary embedding of a part of each head."""
    batch, heads, half, length = d.size(1, 3), d.number(1, 3), d.number(1, 4), d.size(1, 5)
    width = 2 * half + 2 * d.number(1, 3)
    flat = d.chance()
    angles = d.values((9, half))
    x = d.values((batch, length, heads * width) if flat else (batch, heads, length, width))
    return d.node(
        d.data(x), d.data(d.indices((batch, length), 0, 8)), d.constant(np.cos(angles)),
        d.constant(np.sin(angles)), domain=MICROSOFT, name="RotaryEmbedding", num_heads=heads,
        rotary_embedding_dim=2 * half, **d.some(interleaved=d.number(0, 1)),
    )  # fmt: skip


def packed_rotary(d: Draw) -> Node:
    return _named(contrib_rotary(d), "RotaryEmbedding", scale=1.0, is_packed_batching=0)


def embedding_with_index(d: Draw) -> Node:
    return _named(embed_layer_normalization(d), "EmbedLayerNormalization", mask_index_type=d.number(0, 1))


def grouped_bits(d: Draw) -> Node:
    """MatMulNBits whose columns belong to blocks in another order."""
    node = matmul_nbits(d)
    depth, block = node.attributes["K"], node.attributes["block_size"]
    blocks = -(-depth // block)
    order = d.rng.permutation(np.arange(blocks * block) // block).astype("int32")
    if node.attributes["bits"] != 4:
        raise ValueError("ONNX Runtime has another order of 4 bits alone")
    node.inputs += [None] * (5 - len(node.inputs))
    node.inputs[3:5] = [None, Input(order, True)]  # with zero points, it computes as if they were 8
    return _named(node, "MatMulNBits", **d.some(accuracy_level=d.pick((0, 1))))


def bits_of_layers(d: Draw) -> Node:
    node = quantised_mixture(d)
    bits = node.attributes["expert_weight_bits"]
    return _named(node, "QMoE", fc1_expert_weight_bits=bits, fc2_expert_weight_bits=bits)


def tree_with_base(d: Draw) -> Node:
    node = tree_regressor(d)
    first = node.inputs[0]
    node.attributes.pop("base_values", None)
    if first is None or first.value.dtype != np.float64:
        raise ValueError("trees of floats have base_values")
    count = node.attributes["n_targets"]
    base = helper.make_tensor("b", TensorProto.DOUBLE, [count], [d.real(-1, 1) for _ in range(count)])
    return _named(node, "TreeEnsembleRegressor", base_values_as_tensor=base)


def counted_keys(d: Draw) -> Node:
    """Attention of a cache whose keys after the first ones of each sequence are not attended."""
    d.opset = 24
    batch, heads, queries, keys, width = d.size(1, 3), d.number(1, 2), d.size(1, 3), d.number(4, 6), 8
    shapes = ((batch, heads, queries, width), *[(batch, heads, keys, width)] * 2)
    q, k, v = (d.data(d.values(shape, "float32", 1.0)) for shape in shapes)
    counts = d.data(d.indices((batch,), 3, keys))
    return d.node(q, k, v, None, None, None, counts, name="Attention", **d.some(is_causal=d.number(0, 1)))


MAKERS: dict[str, Maker] = {
    "BatchesTurned": batches_turned,
    "BidirectionalQueries": bidirectional_queries,
    "BitsOfLayers": bits_of_layers,
    "CountedKeys": counted_keys,
    "DequantizedType": dequantized_type,
    "EmbeddingWithIndex": embedding_with_index,
    "FilteredAttention": filtered_attention,
    "FusedConvSum": fused_conv_sum,
    "FusedGemmTurned": fused_gemm_turned,
    "GroupedBits": grouped_bits,
    "PackedRotary": packed_rotary,
    "QuantizedType": quantized_type,
    "ReshapeWithZeros": reshape_with_zeros,
    "ResizeByPolicy": resize_by_policy,
    "ScaledRotary": scaled_rotary,
    "TreeWithBase": tree_with_base,
    "Unordered": unordered,
    "WindowType": window_type,
}
