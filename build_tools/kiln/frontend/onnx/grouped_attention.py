"""GroupQueryAttention of ONNX Runtime: grouped queries, rotary positions, past and present."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from kiln.extents import Extent
from kiln.frontend.onnx.attention import (
    Scores,
    attend,
    causal,
    is_tensor,
    join_heads,
    past_and_new,
    positions,
    split_heads,
)
from kiln.frontend.onnx.body import Body, Expansion
from kiln.frontend.onnx.node import part
from kiln.frontend.onnx.rotary_ops import at_positions, rotate
from kiln.frontend.onnx.windowed_cache import windowed_cache

op = relax.op
_REFUSED_INPUTS = {"k_scale": 12, "v_scale": 13, "q_norm_weight": 14, "k_norm_weight": 15}


@dataclass(frozen=True)
class _KeyCounts:
    """Numbers of keys: `past` before the new ones, a size or a tensor (batch, 1, 1, 1), and `keys` in all."""

    past: Any
    keys: Extent


def _key_counts(body: Body, queries: Extent, batch: Extent) -> _KeyCounts:
    """The numbers of keys of a node. Raises ValueError if the total length is not known at build time."""
    old = body.shape(body.input(3))[2] if body.has(3) else 0
    total = body.extent(body.input(6))
    if total is None:
        raise ValueError(
            f"its input 'total_sequence_length' ('{body.input(6)}') is not known before the model runs: "
            "bind it to a constant, or export it as the size of an axis"
        )
    longer = body.symbols.simplify(old + queries)
    keys = total if body.symbols.equal(total, longer) or old == 0 else old
    if isinstance(old, int) and isinstance(total, int):
        keys = max(old, total)
    if body.symbols.equal(total, queries):  # the first tokens, whatever the buffer of the past contains
        return _KeyCounts(0, keys)
    lengths = body.constant(body.input(5))
    if lengths is not None and np.unique(lengths).size == 1:
        return _KeyCounts(int(lengths.reshape(-1)[0]) + 1 - queries, keys)
    if batch == 1:
        return _KeyCounts(body.symbols.simplify(total - queries), keys)
    count = op.reshape(op.astype(body.tensor(body.input(5)), "int64"), [batch, 1, 1, 1])
    past = op.add(op.subtract(count, positions(1, queries)), relax.const(1, "int64"))
    return _KeyCounts(body.tensor(body.bind(past)), keys)


def _present(body: Body, past: str, new: str, sizes: _KeyCounts) -> str:
    """(batch, heads, keys, size): the past, the new keys after it, then the rest of the past's buffer."""
    batch, heads, length, width = body.shape(new)
    keys, x = sizes.keys, body.tensor(new)
    if not is_tensor(sizes.past):
        parts = [x]
        if not body.symbols.equal(sizes.past, 0):
            parts.insert(0, part(body.tensor(past), 2, 0, sizes.past))
        end = body.symbols.simplify(sizes.past + length)
        if not body.symbols.equal(end, keys):
            parts.append(part(body.tensor(past), 2, end, keys))
        return body.bind(op.concat(parts, 2)) if len(parts) > 1 else new
    relative = op.subtract(op.reshape(positions(keys), [1, 1, keys, 1]), sizes.past)
    relative = body.tensor(body.bind(op.broadcast_to(relative, [batch, heads, keys, width])))
    is_new = op.logical_and(
        op.greater_equal(relative, relax.const(0, "int64")), op.less(relative, positions(1, length))
    )
    last = op.subtract(positions(1, length), relax.const(1, "int64"))
    index = op.maximum(op.minimum(relative, last), relax.const(0, "int64"))
    new_at_positions = body.op("GatherElements", new, body.bind(index), axis=2)
    old_buffer = body.tensor(past)
    missing = body.symbols.simplify(keys - body.shape(past)[2])
    if not body.symbols.equal(missing, 0):
        zeros = op.full([batch, heads, missing, width], relax.const(0, body.dtype(new)), body.dtype(new))
        old_buffer = op.concat([old_buffer, zeros], 2)
    return body.bind(op.where(is_new, body.tensor(new_at_positions), old_buffer))


def _rotated(body: Body, name: str, heads: int, sizes: _KeyCounts) -> str:
    """(batch, sequence, heads * size) → (batch, heads, sequence, size), rotated on request."""
    if not body.attribute("do_rotary", 0):
        return split_heads(body, name, heads)
    batch, length, width = body.shape(name)
    by_head = body.reshape(name, [batch, length, heads, width // heads])
    if body.has(9):
        token_positions = body.input(9)
    elif is_tensor(sizes.past):
        steps = op.reshape(positions(length), [1, length])
        token_positions = body.bind(op.add(op.reshape(sizes.past, [batch, 1]), steps))
    else:
        token_positions = body.bind(op.expand_dims(positions(length, sizes.past), 0))
    cos, sin = (at_positions(body, body.input(index), token_positions) for index in (7, 8))
    rotated = rotate(body, by_head, cos, sin, bool(body.attribute("rotary_interleaved", 0)))
    return body.transpose(rotated, [0, 2, 1, 3])


def group_query_attention(body: Body) -> list[str | None]:
    """com.microsoft.GroupQueryAttention."""
    heads, kv_heads = int(body.required("num_heads")), int(body.required("kv_num_heads"))
    body.refuse_inputs(**_REFUSED_INPUTS)
    for name in ("kv_cache_bit_width", "qk_output"):
        body.only(name, 0)
    for name in ("k_quant_type", "v_quant_type"):
        body.only(name, "NONE")
    body.accept_attributes("qk_norm_epsilon")  # of inputs that are refused
    q, k, v = (body.input(index) for index in range(3))
    if not k:
        size = body.size(q, 2, "the width of the queries") // (heads + 2 * kv_heads)
        ends = [0, heads * size, (heads + kv_heads) * size, (heads + 2 * kv_heads) * size]
        q, k, v = (
            body.bind(op.strided_slice(body.tensor(body.input(0)), [2], [begin], [end]))
            for begin, end in itertools.pairwise(ends)
        )
    batch, queries = body.shape(q)[:2]
    window, is_causal = int(body.attribute("local_window_size", -1)), body.only("causal", 1, 0)
    cache = None
    if body.only("sliding_window_cache", 0, 1):
        cache = windowed_cache(body, queries, window if is_causal else -1)
    sizes = _KeyCounts(cache.tokens_before, cache.capacity) if cache else _key_counts(body, queries, batch)
    q, k = _rotated(body, q, heads, sizes), _rotated(body, k, kv_heads, sizes)
    v = split_heads(body, v, kv_heads)
    if cache:
        k, v = (past_and_new(body, body.input(3 + index), new) for index, new in enumerate((k, v)))
        present = [cache.present(k), cache.present(v)]
    else:
        k, v = _present(body, body.input(3), k, sizes), _present(body, body.input(4), v, sizes)
        present = [k, v]
    scale = body.attribute("scale", 0.0)
    how = Scores(float(scale) or 1 / np.sqrt(body.size(q, 3, "the size of a head")))
    how.softcap = float(body.attribute("softcap", 0.0))
    if body.has(10):
        bias = body.input(10)
        how.biases.append(cache.bias(bias) if cache else _wide_bias(body, bias, sizes.keys))
    if cache:
        how.masks.append(cache.mask())
    elif is_causal:
        how.masks.append(causal(body, queries, sizes.keys, sizes.past, window - 1 if window > 0 else -1))
    if body.has(11):
        how.sink = body.input(11)
    elif body.only("smooth_softmax", 0, -1, 1) == 1:
        how.sink = body.const(np.zeros(heads), body.dtype(q))
    return [join_heads(body, attend(body, q, k, v, how).result), *present]


def _wide_bias(body: Body, bias: str, keys: Extent) -> str:
    """`bias` with as many columns as there are keys; keys beyond its own columns are never attended."""
    shape = body.shape(bias)
    missing = body.symbols.simplify(keys - shape[-1])
    if body.symbols.equal(missing, 0):
        return bias
    dtype = body.dtype(bias)
    zeros = op.full([*shape[:-1], missing], relax.const(np.asarray(0, dtype), dtype), dtype)
    return body.bind(op.concat([body.tensor(bias), zeros], 3))


MICROSOFT: dict[str, Expansion] = {"GroupQueryAttention": group_query_attention}
