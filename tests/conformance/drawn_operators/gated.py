"""Operators of ONNX Runtime for state space models and linear attention (domain com.microsoft)."""

from __future__ import annotations

from typing import Any

import numpy as np

from .draw import Draw, Input, Maker, Node
from .quantised import MICROSOFT


def scaled_silu(d: Draw) -> Node:
    scale = d.either(np.asarray([d.real(0.2, 2)], "float32")) if d.chance() else None
    return d.node(d.data(d.values(d.shape(1, 4))), scale, domain=MICROSOFT, **d.some(alpha=d.real(0.2, 2)))


def gated_add(d: Draw) -> Node:
    shape = d.shape(1, 4)
    return d.node(
        d.data(d.values(shape)),
        d.data(d.values(shape)),
        d.data(d.values((*shape[:-1], 1))),
        domain=MICROSOFT,
    )


def gated_norm(d: Draw) -> Node:
    width, heads = d.number(1, 8), d.number(1, 3)
    shape = (*d.shape(1, 3), width * heads)
    return d.node(
        d.data(d.values(shape)),
        d.either(d.values((width,)), data=0.2),
        d.data(d.values(shape)),
        domain=MICROSOFT,
        **d.some(epsilon=d.real(1e-5, 0.1), activation=d.pick(("silu", "swish", "sigmoid"))),
    )


def branchwise_norm(d: Draw) -> Node:
    branches, width = d.number(1, 3), d.number(1, 8)
    flat = d.chance()
    shape = (*d.shape(1, 2), *((branches * width,) if flat else (branches, width)))
    scale = d.pick((None, (branches * width,), (branches, width), (width,)))
    return d.node(
        d.data(d.values(shape)),
        None if scale is None else d.either(d.values(scale), data=0.2),
        domain=MICROSOFT,
        num_branches=branches if flat else None,
        **d.some(epsilon=d.real(1e-5, 0.1)),
    )


def attention_gate(d: Draw) -> Node:
    heads = d.number(1, 6)
    shape = (d.size(1, 3), d.size(1, 5), heads)
    update = d.data(d.values(shape)) if d.chance() else None
    return d.node(
        d.data(d.values(shape)),
        d.either(d.values((heads,)), data=0.2),
        d.either(-np.abs(d.values((heads,))), data=0.2),
        update,
        outputs=2 if update else 1,
        domain=MICROSOFT,
    )


def causal_convolution(d: Draw) -> Node:
    batch, length = d.size(1, 3), d.size(1, 6)
    channels, kernel, dilation = d.number(1, 6), d.number(2, 4), d.pick((1, 1, 2))
    last = d.chance(0.3)
    state = (kernel - 1) * dilation
    turn = (0, 2, 1) if last else (0, 1, 2)
    past = d.data(d.values((batch, channels, state)).transpose(turn)) if d.chance(0.7) else None
    return d.node(
        d.data(d.values((batch, channels, length)).transpose(turn)),
        d.either(d.values((channels, 1, kernel)), data=0.2),
        d.either(d.values((channels,)), data=0.2) if d.chance() else None,
        past,
        outputs=2,
        domain=MICROSOFT,
        dilation=dilation if dilation > 1 else None,
        channels_last=1 if last else None,
        **d.some(activation=d.pick(("silu", "swish", "none")), ndim=1),
    )


def linear_attention(d: Draw) -> Node:
    batch, length = d.size(1, 2), d.size(1, 5)
    heads, groups, width = d.number(1, 2), d.number(1, 5), d.number(1, 6)
    value = d.number(1, 4) if d.chance() else d.number(5, 150)
    rule = d.pick(("linear", "gated", "delta", "gated_delta"))
    past: Input | None = d.data(d.values((batch, heads, width, value))) if d.chance(0.7) else None
    decays = heads * (width if d.chance() else 1)
    attributes: dict[str, Any] = {"q_num_heads": heads * groups, "kv_num_heads": heads, "update_rule": rule}
    return d.node(
        d.data(d.values((batch, length, heads * groups * width), scale=0.5)),
        d.data(d.values((batch, length, heads * width), scale=0.5)),
        d.data(d.values((batch, length, heads * value), scale=0.5)),
        past,
        d.data(-np.abs(d.values((batch, length, decays)))) if "gated" in rule else None,
        d.data(np.abs(d.values((batch, length, heads if d.chance(0.8) else 1), scale=0.3)))
        if "delta" in rule
        else None,
        outputs=2,
        domain=MICROSOFT,
        **attributes,
        **d.some(scale=d.real(0.2, 1)),
    )


def multimodal_rotary(d: Draw) -> Node:
    batch, length, heads, half = d.size(1, 3), d.size(1, 5), d.number(1, 3), d.number(3, 6)
    partial = d.chance(0.3)
    width = 2 * half + (2 * d.number(1, 2) if partial else 0)
    first = d.number(1, half - 2)
    second = d.number(1, half - first - 1)
    layout = d.number(0, 1)
    sections = [first, second, half - first - second]
    if layout:  # each third column from the second and from the third one, as far as there are columns
        sections = [half - 2 * (half // 3), half // 3, half // 3]
    four = d.chance()
    shape = (batch, heads, length, width) if four else (batch, length, heads * width)
    angles = d.values((11, half))
    return d.node(
        d.data(d.values(shape)),
        d.data(d.indices((3, batch, length), 0, 10)),
        d.either(np.cos(angles), data=0.2),
        d.either(np.sin(angles), data=0.2),
        domain=MICROSOFT,
        mrope_section=sections,
        mrope_layout=layout,
        num_heads=heads if partial or not four else None,
        rotary_embedding_dim=2 * half if partial else None,
        **d.some(interleaved=d.number(0, 1)),
    )


def quantized_embedding(d: Draw) -> Node:
    batch, length, width = d.size(1, 3), d.size(1, 5), d.number(2, 8)
    segments = d.chance(0.6)

    def scale() -> Input:
        return d.constant(d.real(0.01, 0.1), "float32")

    def point() -> Input:
        return d.constant(d.number(0, 255), "uint8")

    tables = [d.constant(d.values(shape, "uint8")) for shape in ((11, width), (10, width), (2, width))]
    rows = [d.constant(d.values((width,), "uint8")) for _ in range(2)]
    mask = d.data(d.values((batch, length), "bool").astype("int32")) if d.chance(0.4) else None
    third = [tables[2] if segments else None]
    return d.node(
        d.data(d.indices((batch, length), 0, 10, "int32")),
        d.data(d.indices((batch, length), 0, 1, "int32")) if segments else None,
        tables[0], tables[1], *third, *rows, mask,
        scale(), scale(), scale() if segments else None, scale(), scale(),
        point(), point(), point() if segments else None, point(), point(),
        outputs=2,
        domain=MICROSOFT,
        **d.some(epsilon=d.real(1e-5, 0.1)),
    )  # fmt: skip


MAKERS: dict[str, Maker] = {
    "BranchwiseRMSNorm": branchwise_norm,
    "CausalConvWithState": causal_convolution,
    "GatedAdd": gated_add,
    "GatedRMSNorm": gated_norm,
    "LinearAttention": linear_attention,
    "LinearAttentionGate": attention_gate,
    "MRotaryEmbedding": multimodal_rotary,
    "QEmbedLayerNormalization": quantized_embedding,
    "ScaledSiLU": scaled_silu,
}
