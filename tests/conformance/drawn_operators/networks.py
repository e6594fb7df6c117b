"""Recurrent layers, attention and rotary embeddings of ONNX."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from .draw import Draw, Input, Maker, Node

_ACTIVATIONS = (
    "Sigmoid",
    "Tanh",
    "Relu",
    "HardSigmoid",
    "Elu",
    "LeakyRelu",
    "Softsign",
    "Softplus",
    "Affine",
    "ScaledTanh",
)  # without ThresholdedRelu, which ONNX Runtime computes with a parameter of another activation
_BETA = ("HardSigmoid", "Affine", "ScaledTanh")  # activations with a second parameter, and a first
_ALPHA = (*_BETA, "Elu", "LeakyRelu")


def recurrent(gates: int, functions: int, d: Draw) -> Node:
    length, batch, width, hidden = d.size(1, 5), d.size(1, 3), d.number(1, 5), d.number(1, 5)
    direction = d.pick(("forward", "reverse", "bidirectional"))
    ways = 2 if direction == "bidirectional" else 1
    layout = d.number(0, 1) if d.opset >= 14 and d.chance(0.2) else 0

    def tensor(*shape: int, scale: float = 0.6) -> np.ndarray:
        return d.values(shape, "float32", scale)

    def weight(*shape: int) -> Input:
        return d.either(tensor(*shape), data=0.15)

    state = (batch, ways, hidden) if layout else (ways, batch, hidden)
    x = tensor(batch, length, width) if layout else tensor(length, batch, width)
    lengths = d.indices((batch,), 1, length, "int32") if d.chance(0.4) else None
    operands: list[Input | None] = [
        d.data(x),
        weight(ways, gates * hidden, width),
        weight(ways, gates * hidden, hidden),
        weight(ways, 2 * gates * hidden) if d.chance(0.7) else None,
        d.data(lengths) if lengths is not None else None,
        d.either(tensor(*state), data=0.7) if d.chance() else None,
    ]
    attributes: dict[str, Any] = (
        d.some(direction=direction) if direction == "forward" else {"direction": direction}
    )
    if d.chance(0.3):
        chosen = [d.pick(_ACTIVATIONS) for _ in range(functions * ways)]
        attributes["activations"] = chosen
        for name, takers in (("activation_alpha", _ALPHA), ("activation_beta", _BETA)):
            attributes[name] = [d.real(0.2, 1) for kind in chosen if kind in takers] or None
    if d.chance(0.3):
        attributes["clip"] = d.real(0.3, 2)
    outputs = d.number(1, 2)
    if d.operator == "LSTM":
        outputs = d.number(1, 3)
        operands.append(d.either(tensor(*state), data=0.7) if d.chance() else None)
        operands.append(weight(ways, 3 * hidden) if d.chance(0.3) else None)
        attributes |= d.some(input_forget=d.pick((0, 0, 1)))
    if d.operator == "GRU":
        attributes |= d.some(linear_before_reset=d.number(0, 1))
    return d.node(*operands, hidden_size=hidden, outputs=outputs, layout=layout or None, **attributes)


def attention(d: Draw) -> Node:
    batch, queries, width, value_width = d.size(1, 2), d.size(1, 5), 2 * d.number(1, 3), 2 * d.number(1, 3)
    groups, kv_heads = d.pick((1, 1, 2)), d.number(1, 2)
    heads, keys, before = groups * kv_heads, d.size(1, 6), d.size(1, 3)
    flat = d.chance(0.4)
    past = d.chance(0.3)

    def tensor(count: int, length: int, size: int) -> Input:
        value = d.values(
            (batch, length, count * size) if flat else (batch, count, length, size), "float32", 1.0
        )
        return d.data(value)

    total = keys + before if past else keys
    mask: Input | None = None
    if d.chance():
        shape = (queries, total)
        lead = d.pick(((), (1, 1), (batch, 1), (batch, heads), (1, heads)))
        value = d.values((*lead, *shape), d.pick(("bool", "float32")), 1.0)
        if value.dtype == bool:
            value[..., 0] = True
        mask = d.either(value, data=0.7)
    more = [
        d.data(d.values((batch, kv_heads, before, size), "float32", 1.0)) for size in (width, value_width)
    ]
    attributes = d.some(
        is_causal=d.number(0, 1 - past),  # with a past, ONNX Runtime lets queries see fewer keys than ONNX
        scale=d.real(0.2, 1),
        softcap=d.real(0, 4),
        softmax_precision=1,
        qk_matmul_output_mode=d.number(0, 3),
    )
    if flat:
        attributes |= {"q_num_heads": heads, "kv_num_heads": kv_heads}
    outputs = d.pick((1, 3, 4)) if past else 1
    return d.node(
        tensor(heads, queries, width),
        tensor(kv_heads, keys, width),
        tensor(kv_heads, keys, value_width),
        mask,
        *(more if past else ()),
        outputs=outputs,
        **attributes,
    )


def rotary(d: Draw) -> Node:
    batch, heads, length, width = d.size(1, 3), d.number(1, 3), d.size(1, 5), 2 * d.number(1, 4)
    partial_width = width if d.chance() else 2 * d.number(1, width // 2)
    flat = d.chance()
    positions = d.chance()
    rows = (9,) if positions else (batch, length)
    cos, sin = (d.either(d.values((*rows, partial_width // 2)), data=0.4) for _ in range(2))
    places = d.data(d.indices((batch, length), 0, 8)) if positions else None
    x = d.values((batch, length, heads * width) if flat else (batch, heads, length, width))
    attributes = d.some(interleaved=d.number(0, 1))
    if flat or partial_width != width:
        attributes["num_heads"] = heads
    if partial_width != width:
        attributes["rotary_embedding_dim"] = partial_width
    return d.node(d.data(x), cos, sin, places, **attributes)


MAKERS: dict[str, Maker] = {
    "RNN": partial(recurrent, 1, 1),
    "GRU": partial(recurrent, 3, 2),
    "LSTM": partial(recurrent, 4, 3),
    "Attention": attention,
    "RotaryEmbedding": rotary,
}
