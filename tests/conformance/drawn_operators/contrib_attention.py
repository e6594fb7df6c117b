"""Attention and rotary embeddings of ONNX Runtime (domain com.microsoft)."""

from __future__ import annotations

from typing import Any

import numpy as np

from .draw import Draw, Input, Maker, Node, Step
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
    if batch > 1 and before:
        queries = 1  # ONNX Runtime takes several new tokens after a past of one sequence alone
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
    rotary: list[Input | None] = [None, None, None]
    if d.chance(0.4):
        attributes |= {"do_rotary": 1} | d.some(rotary_interleaved=d.number(0, 1))
        angles = d.values((12, width // 2))
        rotary = [d.constant(np.cos(angles)), d.constant(np.sin(angles)), None]
        if d.chance(0.3):
            rotary[2] = d.data(d.indices((batch, queries), 0, 11))
    uneven = queries == 1 and before > 0 and d.chance(0.4)  # sequences of a batch with pasts of their own
    counts = d.indices((batch,), 0, total - 1, "int32") if uneven else np.full((batch,), total - 1, "int32")
    counts[-1] = total - 1  # the longest sequence of the batch has the total length
    lengths = d.data(counts) if uneven else d.either(counts, data=0.5)
    bias = None
    if d.chance(0.25):
        lead = d.pick(((batch, heads), (1, heads), (batch, 1), (1, 1)))
        bias = d.data(d.values((*lead, queries, total)))
    sink = d.either(d.values((heads,)), data=0.3) if d.chance(0.25) else None
    if sink is None:
        attributes |= d.some(smooth_softmax=d.pick((0, 0, 1)))
    made = d.node(
        d.data(x), *pair, *past, lengths, d.constant(np.asarray(total, "int32")), *rotary, bias, sink,
        outputs=3, domain=MICROSOFT, **attributes,
    )  # fmt: skip
    return first_result(made) if uneven else made


def first_result(node: Node) -> Node:
    """The node with its first result alone as an output of the file.

    What a cache has after the last key of a shorter sequence is not defined.
    """
    names = [f"x{number}" if item is not None else "" for number, item in enumerate(node.inputs)]
    step = Step(node.operator, names, ["y", "keys", "values"], {**node.attributes, "domain": MICROSOFT})
    return Node(node.operator, node.inputs, {}, 1, node.opset, MICROSOFT, steps=[step], results=["y"])


def windowed_attention(d: Draw) -> Node:
    """GroupQueryAttention with a cache of the window alone, filled as by the tokens before."""
    batch, kv_heads, width, groups = d.size(1, 3), d.number(1, 2), 16, d.pick((1, 2))
    heads, window = groups * kv_heads, d.number(1, 5)
    capacity = window + d.pick((0, 0, 1, 2, 5))
    first = d.chance(0.2)  # the first tokens
    queries = d.number(1, 8) if batch == 1 or first else 1
    before = [0 if first else d.number(0, 12) for _ in range(batch)]
    tokens = np.asarray(before) + queries
    attributes: dict[str, Any] = {"num_heads": heads, "kv_num_heads": kv_heads, "sliding_window_cache": 1}
    attributes |= {"local_window_size": window} | d.some(scale=d.real(0.2, 1), softcap=d.real(1, 5))
    rotary: list[Input | None] = [None, None]
    if d.chance():
        attributes |= {"do_rotary": 1} | d.some(rotary_interleaved=d.number(0, 1))
        angles = d.values((24, width // 2))
        rotary = [d.constant(np.cos(angles)), d.constant(np.sin(angles))]
    total = int(tokens.max())
    bias = (
        d.data(d.values((d.pick((1, batch)), d.pick((1, heads)), queries, total))) if d.chance(0.3) else None
    )
    sink = d.either(d.values((heads,)), data=0.3) if d.chance(0.25) else None
    made = d.node(
        d.data(d.values((batch, queries, heads * width), "float32", 1.0)),
        *(d.data(d.values((batch, queries, kv_heads * width), "float32", 1.0)) for _ in range(2)),
        *(d.data(d.values((batch, kv_heads, capacity, width))) for _ in range(2)),
        d.either((tokens - 1).astype("int32"), data=0.7), d.constant(np.asarray(total, "int32")),
        *rotary, None, bias, sink, outputs=3, domain=MICROSOFT, name="GroupQueryAttention", **attributes,
    )  # fmt: skip
    held = [count - max(0, -(-(count - capacity) // (capacity - window + 1))) * (capacity - window + 1)
            for count in tokens.tolist()]  # fmt: skip
    return with_rows(made, min(held))


def with_rows(node: Node, count: int) -> Node:
    """The node with as many rows of its caches: others are not defined."""
    made = first_result(node)
    first = len(made.inputs)
    inputs = [Input(np.asarray([value], "int64"), True) for value in (0, count, 2)]
    names = [f"x{first + number}" for number in range(3)]
    steps = [Step("Slice", [name, *names], [f"{name}_held"], {}) for name in ("keys", "values")]
    made.inputs, made.steps = [*made.inputs, *inputs], [*made.steps, *steps]
    made.results = [*made.results, "keys_held", "values_held"]
    return made


def cached_attention(d: Draw) -> Node:
    """GroupQueryAttention as language models have it: lengths come from a mask, and the cache grows."""
    batch, kv_heads, width, groups = d.size(1, 3), d.number(1, 2), 16, d.pick((1, 2))
    heads = groups * kv_heads
    queries = d.size(1, 4) if d.chance() else 1
    before = d.size(1, 4)
    if queries > 1 and batch > 1:
        raise ValueError("ONNX Runtime takes several new tokens of one sequence alone")
    mask = np.ones((batch, before + queries), "int64")
    attributes: dict[str, Any] = {"num_heads": heads, "kv_num_heads": kv_heads, "domain": MICROSOFT}
    attributes |= d.some(scale=d.real(0.2, 1), softcap=d.real(1, 5), local_window_size=d.number(1, 4))
    inputs = [
        d.data(d.values((batch, queries, heads * width), "float32", 1.0)),
        *(d.data(d.values((batch, queries, kv_heads * width), "float32", 1.0)) for _ in range(2)),
        *(d.data(d.values((batch, kv_heads, before, width))) for _ in range(2)),
        d.data(mask),
    ]
    names = [f"x{number}" for number in range(5)]
    rotary: list[str] = []
    if d.chance():
        attributes |= {"do_rotary": 1} | d.some(rotary_interleaved=d.number(0, 1))
        angles = d.values((20, width // 2))
        inputs += [d.constant(np.cos(angles)), d.constant(np.sin(angles))]
        rotary = ["x6", "x7"]
    first = len(inputs)
    inputs += [d.constant([1], "int64"), d.constant(1, "int64")]
    axis, one = f"x{first}", f"x{first + 1}"
    steps = [
        Step("ReduceSum", ["x5", axis], ["counts"], {"keepdims": 0}),
        Step("Sub", ["counts", one], ["last"], {}),
        Step("Cast", ["last"], ["lengths"], {"to": 6}),
        Step("Shape", ["x5"], ["sizes"], {}),
        Step("Gather", ["sizes", one], ["size"], {"axis": 0}),
        Step("Cast", ["size"], ["total"], {"to": 6}),
        Step(
            "GroupQueryAttention", [*names, "lengths", "total", *rotary], ["y", "keys", "values"], attributes
        ),
    ]
    opset = d.number(13, 20)
    results = ["y", "keys", "values"]
    return Node("CachedAttention", inputs, {}, 3, opset, MICROSOFT, steps=steps, results=results)


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
    "CachedAttention": cached_attention,
    "WindowedAttention": windowed_attention,
    "ContribRotary": contrib_rotary,
}
