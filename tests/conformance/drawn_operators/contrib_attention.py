"""Attention and rotary embeddings of ONNX Runtime (domain com.microsoft)."""

from __future__ import annotations

from typing import Any

import numpy as np

from .draw import Draw, Input, Maker, Node
from .quantised import MICROSOFT


def heads_of(d: Draw) -> tuple[int, int, int]:
    """Batch, number of heads and width of a head."""
    return d.size(1, 3), d.number(1, 3), 2 * d.number(1, 4)


def packed_attention(d: Draw) -> Node:
    """Attention: the projection of queries, keys and values is a part of the node."""
    batch, heads, width = heads_of(d)
    length, size = d.size(1, 5), d.number(2, 8)
    total = heads * width
    before = d.size(1, 3) if d.chance(0.25) else 0
    attributes: dict[str, Any] = {"num_heads": heads} | d.some(scale=d.real(0.2, 1))
    sizes = [total, total, total]
    if not before and d.chance(0.3):
        sizes[2] = heads * 2 * d.number(1, 3)
        attributes["qkv_hidden_sizes"] = sizes
    if d.chance(0.3):
        attributes["unidirectional"] = 1
    mask: Input | None = None
    form = d.pick(("none", "row", "ends", "whole", "none"))
    if form == "row":
        value = d.values((batch, length + before), "bool").astype("int32")
        value[:, 0] = 1
        mask = d.data(value)
    elif form == "ends":
        mask = d.data(d.indices((batch,), 1, length + before, "int32"))
    elif form == "whole":
        value = d.values((batch, length, length + before), "bool").astype("int32")
        value[..., 0] = 1
        mask = d.data(value)
    past = d.data(d.values((2, batch, heads, before, width))) if before else None
    bias = d.data(d.values((batch, heads, length, length + before))) if d.chance(0.3) else None
    operands = [
        d.data(d.values((batch, length, size), "float32", 1.0)),
        d.either(d.values((size, sum(sizes)), "float32", 0.5), data=0.1),
        d.either(d.values((sum(sizes),)), data=0.1),
        mask,
        past,
        bias,
    ]
    return d.node(*operands, outputs=2 if before else 1, domain=MICROSOFT, name="Attention", **attributes)


def multi_head_attention(d: Draw) -> Node:
    batch, heads, width = heads_of(d)
    queries, keys = d.size(1, 5), d.size(1, 5)
    total, value_width = heads * width, width if d.chance(0.7) else 2 * d.number(1, 4)
    attributes: dict[str, Any] = {"num_heads": heads} | d.some(
        scale=d.real(0.2, 1), mask_filter_value=-1000.0
    )
    x = d.data(d.values((batch, queries, total), "float32", 1.0))
    form = d.pick(("flat", "flat", "heads"))
    if form == "heads":
        value_width = width
        shapes = [(batch, heads, keys, width)] * 2
    else:
        shapes = [(batch, keys, heads * size) for size in (width, value_width)]
    operands = [x, *(d.data(d.values(shape, "float32", 1.0)) for shape in shapes)]
    before = d.size(1, 3) if form == "flat" and d.chance(0.3) else 0
    bias = d.constant(d.values((2 * total + heads * value_width,))) if d.chance(0.4) else None
    mask: Input | None = None
    if d.chance(0.4):
        value = d.values((batch, keys + before), "bool").astype("int32")
        value[:, 0] = 1
        mask = d.data(value)
    added = None
    if d.chance(0.4):
        lead = d.pick(((batch, heads), (1, heads), (batch, 1), (1, 1)))
        added = d.data(d.values((*lead, queries, keys + before)))
    past = [d.data(d.values((batch, heads, before, size))) for size in (width, value_width)] if before else []
    if queries == keys and d.chance(0.3):
        attributes["unidirectional"] = 1
    return d.node(
        *operands,
        bias,
        mask,
        added,
        *past,
        outputs=3 if before else d.pick((1, 1, 3)),
        domain=MICROSOFT,
        **attributes,
    )


def group_query_attention(d: Draw) -> Node:
    batch, kv_heads, width = d.size(1, 3), d.number(1, 2), 16
    groups, before, queries = d.pick((1, 2, 3)), d.number(0, 4), d.number(1, 4)
    heads, total = groups * kv_heads, before + queries
    packed = d.chance(0.3)
    x = d.values((batch, queries, (heads + 2 * kv_heads if packed else heads) * width), "float32", 1.0)
    pair: list[Input | None] = [
        None if packed else d.data(d.values((batch, queries, kv_heads * width), "float32", 1.0))
        for _ in range(2)
    ]
    past = [d.data(d.values((batch, kv_heads, before, width))) if before else None for _ in range(2)]
    attributes: dict[str, Any] = {"num_heads": heads, "kv_num_heads": kv_heads}
    attributes |= d.some(scale=d.real(0.2, 1), softcap=d.real(1, 5), local_window_size=d.number(1, 4))
    rotary: list[Input | None] = [None, None]
    if d.chance(0.4):
        attributes |= {"do_rotary": 1} | d.some(rotary_interleaved=d.number(0, 1))
        angles = d.values((12, width // 2))
        rotary = [d.constant(np.cos(angles)), d.constant(np.sin(angles))]
    lengths = d.either(np.full((batch,), total - 1, "int32"), data=0.5)
    return d.node(
        d.data(x),
        *pair,
        *past,
        lengths,
        d.constant(np.asarray(total, "int32")),
        *rotary,
        outputs=3,
        domain=MICROSOFT,
        **attributes,
    )


def contrib_rotary(d: Draw) -> Node:
    batch, heads, width = heads_of(d)
    length, flat = d.size(1, 5), d.chance()
    angles = d.values((9, width // 2))
    one = d.chance()
    places = d.indices((1,), 0, 3) if one else d.indices((batch, length), 0, 8)
    x = d.values((batch, length, heads * width) if flat else (batch, heads, length, width))
    attributes = d.some(interleaved=d.number(0, 1))
    if flat and d.chance(0.7):
        attributes["num_heads"] = heads
    return d.node(
        d.data(x),
        d.data(places),
        d.constant(np.cos(angles)),
        d.constant(np.sin(angles)),
        domain=MICROSOFT,
        name="RotaryEmbedding",
        **attributes,
    )


MAKERS: dict[str, Maker] = {
    "PackedProjection": packed_attention,
    "MultiHeadAttention": multi_head_attention,
    "GroupQueryAttention": group_query_attention,
    "ContribRotary": contrib_rotary,
}
