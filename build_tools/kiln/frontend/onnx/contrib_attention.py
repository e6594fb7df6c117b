"""Attention, MultiHeadAttention and QAttention of ONNX Runtime (domain com.microsoft)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from tvm import relax

from kiln.extents import Extent
from kiln.frontend.onnx.attention import (
    Scores,
    attend,
    causal,
    join_heads,
    past_and_new,
    positions,
    split_heads,
)
from kiln.frontend.onnx.body import Body, Expansion
from kiln.frontend.onnx.integer_ops import product_to_float
from kiln.frontend.onnx.node import part

op = relax.op


def _filtered(body: Body, real: str, fill: float, dtype: str) -> str:
    """0 where the bool tensor `real` is true, else `fill`: masked scores get a low number, not -inf."""
    pair = (relax.const(np.asarray(value, dtype), dtype) for value in (0, fill))
    return body.bind(op.where(body.tensor(real), *pair))


def mask_bias(body: Body, mask: str, keys: Extent, queries: Extent, dtype: str) -> str:
    """The bias of a mask of ONNX Runtime: one by key, one by query and key, or lengths of the sentences.

    Shapes of a mask: (batch, keys); (batch, queries, keys); (batch, 1, n, n), whose last rows belong to the
    queries; (batch), the ends of sentences; (2 * batch), ends and starts. Raises ValueError for a mask of
    another shape.
    """
    fill = float(body.attribute("mask_filter_value", -10000.0))
    shape, x = body.shape(mask), body.tensor(mask)
    if len(shape) == 1:
        return _filtered(body, _by_length(body, mask, keys), fill, dtype)
    if len(shape) == 4:
        past = keys - queries
        x = part(part(x, 2, past, keys), 3, 0, keys)
    else:
        axes = [1, 2] if len(shape) == 2 else [1]
        if len(shape) not in (2, 3) or not body.symbols.equal(shape[-1], keys):
            raise ValueError(
                f"its mask has the shape {shape}, allowed: (batch, {keys}) or (batch, {queries}, {keys})"
            )
        x = op.expand_dims(x, axes)
    real = body.bind(op.greater(x, relax.const(0, body.dtype(mask))))
    return _filtered(body, real, fill, dtype)


def _by_length(body: Body, mask: str, keys: Extent) -> str:
    """Whether a key is before the end of its sentence and not before its start: (batch, 1, 1, keys)."""
    (count,) = body.shape(mask)
    batch = body.shape(body.input(0))[0]
    key = op.reshape(positions(keys), [1, 1, 1, keys])
    if body.symbols.equal(count, batch):
        return body.bind(op.less(key, _entries_by_batch(body.tensor(mask), 0, batch)))
    if body.symbols.equal(count, 2 * batch):
        inside = op.less(key, _entries_by_batch(body.tensor(mask), 0, batch))
        return body.bind(
            op.logical_and(inside, op.greater_equal(key, _entries_by_batch(body.tensor(mask), batch, batch)))
        )
    raise ValueError(
        f"its mask has {count} entries, allowed: {batch}, the ends of the sentences, or {2 * batch}"
    )


def _entries_by_batch(x: relax.Expr, begin: Extent, batch: Extent) -> relax.Expr:
    entries = part(x, 0, begin, begin + batch)
    return op.reshape(op.astype(entries, "int64"), [batch, 1, 1, 1])


def _widths(body: Body, total: int) -> list[int]:
    """The widths of queries, keys and values."""
    sizes = body.attribute("qkv_hidden_sizes")
    if sizes is None:
        return [total // 3] * 3
    if len(sizes) != 3 or sum(sizes) != total:
        raise ValueError(
            f"its attribute 'qkv_hidden_sizes' is {list(sizes)}, allowed: three that sum to {total}"
        )
    return list(sizes)


def _split_axis(body: Body, name: str, axis: int, widths: Sequence[int]) -> list[str]:
    ends = np.cumsum([0, *widths]).tolist()
    x = body.tensor(name)
    return [body.bind(op.strided_slice(x, [axis], [begin], [end])) for begin, end in itertools.pairwise(ends)]


def _self_attention(
    body: Body, projected: str, mask: str, past: str, bias: str, widths: list[int]
) -> list[str | None]:
    """Attention of projected queries, keys and values (batch, sequence, widths), with mask and past."""
    heads = int(body.required("num_heads"))
    body.only("do_rotary", 0)
    body.only("past_present_share_buffer", 0)
    q, k, v = (split_heads(body, name, heads) for name in _split_axis(body, projected, 2, widths))
    new_k, new_v = k, v
    if past:
        old_k, old_v = (
            body.bind(op.squeeze(op.strided_slice(body.tensor(past), [0], [index], [index + 1]), [0]))
            for index in range(2)
        )
        new_k, new_v = past_and_new(body, old_k, k), past_and_new(body, old_v, v)
    before = body.shape(new_k)[2] - body.shape(q)[2]
    attended = _attend(body, q, new_k, new_v, mask, bias, before)
    present = None
    if body.wants(1):
        present = body.bind(op.stack([body.tensor(new_k), body.tensor(new_v)], 0))
    return [join_heads(body, attended), present]


def _attend(body: Body, q: str, k: str, v: str, mask: str, bias: str, past: Extent) -> str:
    """softmax(scale q k^T + mask + bias) v, unidirectional on request: query i attends keys to past + i."""
    size, dtype = body.size(q, 3, "the size of a head"), body.dtype(q)
    scale = body.attribute("scale")
    how = Scores(1 / np.sqrt(size) if not scale else float(scale))
    queries, keys = body.shape(q)[2], body.shape(k)[2]
    if mask:
        how.biases.append(mask_bias(body, mask, keys, queries, dtype))
    else:
        body.accept_attributes("mask_filter_value")
    if bias:
        how.biases.append(bias)
    if body.only("unidirectional", 0, 1):
        lowest = float(np.finfo(dtype).min)
        how.biases.append(_filtered(body, causal(body, queries, keys, past), lowest, dtype))
    return attend(body, q, k, v, how).result


def attention(body: Body) -> list[str | None]:
    """com.microsoft.Attention."""
    data, weights, bias, mask, past, extra = (body.input(index) for index in range(6))
    body.refuse_inputs(past_sequence_length=6)
    body.accept_attributes("rotary_embedding_dim")  # of do_rotary
    projected = body.op("MatMul", data, weights)
    if bias:
        projected = body.op("Add", projected, bias)
    widths = _widths(body, body.size(weights, 1, "the width of the weights"))
    return _self_attention(body, projected, mask, past, extra, widths)


def quantised_attention(body: Body) -> list[str | None]:
    """com.microsoft.QAttention: Attention whose projection is a product of 8-bit integers."""
    data, weights, bias, a_scale, b_scale, mask, a_zero, b_zero, past = (
        body.input(index) for index in range(9)
    )
    projected = product_to_float(body, data, weights, (a_scale, b_scale), (a_zero, b_zero), bias)
    width = body.size(weights, 1, "the width of the weights") // 3
    return _self_attention(body, projected, mask, past, "", [width] * 3)


def _queries_keys_values(body: Body, heads: int) -> tuple[str, str, str, str]:
    """Queries, keys, values (batch, heads, sequence, size), and the bias that is still to be added."""
    q, k, v, bias = (body.input(index) for index in range(4))
    if body.rank(q) == 5:  # packed: (batch, sequence, heads, 3, size)
        packed = _split_axis(body, q, 3, [1, 1, 1])
        q, k, v = (_heads_first(body, slice_of_packed) for slice_of_packed in packed)
        return q, k, v, bias
    if body.rank(k) == 5:  # packed: (batch, keys, heads, 2, size)
        k, v = (_heads_first(body, slice_of_packed) for slice_of_packed in _split_axis(body, k, 3, [1, 1]))
        return split_heads(body, q, heads), k, v, bias
    if body.rank(k) == 4:  # of a cross attention, heads are an axis already
        return split_heads(body, q, heads), k, v, bias
    if bias:
        widths = [body.size(name, 2, "a width") for name in (q, k, v)]
        cuts = _split_axis(body, bias, 0, widths)
        q, k, v = (body.op("Add", name, cut) for name, cut in zip((q, k, v), cuts, strict=True))
    q, k, v = (split_heads(body, name, heads) for name in (q, k, v))
    return q, k, v, ""


def _heads_first(body: Body, packed: str) -> str:
    """(batch, sequence, heads, 1, size) → (batch, heads, sequence, size)."""
    batch, length, heads, _, size = body.shape(packed)
    return body.transpose(body.reshape(packed, [batch, length, heads, size]), [0, 2, 1, 3])


def multi_head_attention(body: Body) -> list[str | None]:
    """com.microsoft.MultiHeadAttention."""
    heads = int(body.required("num_heads"))
    body.refuse_inputs(past_sequence_length=8, cache_indirection=9)
    q, k, v, bias = _queries_keys_values(body, heads)
    if bias:
        size = body.size(q, 3, "the size of a head")
        widths = [heads * size, heads * size, heads * body.size(v, 3, "the size of a head")]
        biases = [
            body.bind(op.expand_dims(op.reshape(body.tensor(cut), [heads, 1, width // heads]), 0))
            for cut, width in zip(_split_axis(body, bias, 0, widths), widths, strict=True)
        ]
        is_cross = body.rank(body.input(1)) == 4 if body.has(1) else False
        q = body.op("Add", q, biases[0])
        if not is_cross:
            k, v = body.op("Add", k, biases[1]), body.op("Add", v, biases[2])
    new_k, new_v = past_and_new(body, body.input(6), k), past_and_new(body, body.input(7), v)
    before = body.shape(body.input(6))[2] if body.has(6) else 0
    queries, keys = body.shape(q)[2], body.shape(k)[2]
    if body.attribute("unidirectional", 0) and not body.symbols.equal(queries, keys):
        raise ValueError(
            f"its attribute 'unidirectional' is 1 for {queries} queries and {keys} keys: which key "
            "each query sees last is not defined; give as many keys as queries, or a mask as 'attention_bias'"
        )
    attended = _attend(body, q, new_k, new_v, body.input(4), body.input(5), before)
    return [join_heads(body, attended), new_k, new_v]


MICROSOFT: dict[str, Expansion] = {
    "Attention": attention,
    "MultiHeadAttention": multi_head_attention,
    "QAttention": quantised_attention,
}
