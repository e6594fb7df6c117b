"""Scaled dot-product attention as its operators: products, masks, softmax.

Tensors are (batch, heads, sequence, size). Fewer heads of keys than of queries are grouped queries
(Ainslie et al., "GQA", 2023): the queries of a group are rows of one product, so that no key is copied.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm import relax

from kiln.extents import Extent
from kiln.frontend.onnx.body import Body
from kiln.frontend.onnx.node import part

op = relax.op


@dataclass
class Scores:
    """How scores become probabilities: tanh(scores * scale / softcap) * softcap + biases, then softmax.

    biases: tensors that broadcast to (batch, heads, sequence, keys). masks: such tensors of type bool, false
    where a key is not attended. rows_may_be_empty: whether a row can lack any key; its probabilities are 0.
    sink: one number per head that adds to the sum of the softmax.
    """

    scale: float
    softcap: float = 0.0
    biases: list[str] = field(default_factory=list)
    masks: list[str] = field(default_factory=list)
    rows_may_be_empty: bool = False
    sink: str | None = None


@dataclass(frozen=True)
class Attended:
    """The result (batch, heads, sequence, size), and the scores at each step."""

    result: str
    products: str  # before masks, after softcap
    biased: str
    probabilities: str


def split_heads(body: Body, name: str, heads: int) -> str:
    """(batch, sequence, heads * size) → (batch, heads, sequence, size)."""
    batch, length, width = body.shape(name)
    if heads < 1 or not isinstance(width, int) or width % heads:
        raise ValueError(
            f"the number of heads is {heads}, allowed: a divisor of {width}, the last size of '{name}'"
        )
    return body.transpose(body.reshape(name, [batch, length, heads, width // heads]), [0, 2, 1, 3])


def join_heads(body: Body, name: str) -> str:
    """(batch, heads, sequence, size) → (batch, sequence, heads * size)."""
    batch, heads, length, size = body.shape(name)
    return body.reshape(body.transpose(name, [0, 2, 1, 3]), [batch, length, heads * size])


def past_and_new(body: Body, past: str, new: str) -> str:
    """Keys or values: those of `past` (empty name: none), then `new`, along the axis of the sequence."""
    return body.op("Concat", past, new, axis=2) if past else new


def positions(length: Extent, begin: Extent = 0) -> Any:
    """begin, begin + 1, …: `length` int64 numbers."""
    return op.arange(relax.prim_value(begin), relax.prim_value(begin + length), 1, "int64")


def is_tensor(value: Any) -> bool:
    """Whether a value is a Relax tensor, not a size."""
    return isinstance(getattr(value, "ty", None), relax.TensorType)


def causal(body: Body, queries: Extent, keys: Extent, offset: Any, left: int = -1, right: int = 0) -> str:
    """Mask (…, queries, keys): query i attends keys offset + i - left to offset + i + right; -1: no limit.

    `offset`: a size, or a Relax tensor (batch, 1, 1, 1) of int64.
    """
    query = op.expand_dims(positions(queries), 1)
    query = op.add(offset, query) if is_tensor(offset) else op.expand_dims(positions(queries, offset), 1)
    key = op.expand_dims(positions(keys), 0)
    conditions = []
    if right >= 0:
        conditions.append(op.less_equal(key, op.add(query, relax.const(right, "int64")) if right else query))
    if left >= 0:
        conditions.append(op.greater_equal(key, op.subtract(query, relax.const(left, "int64"))))
    mask = conditions[0] if len(conditions) == 1 else op.logical_and(*conditions)
    return body.bind(mask)


def _group_sizes(body: Body, q: str, k: str) -> tuple[int, Extent]:
    """The number of query heads per key head, and the number of rows of a group's product."""
    heads = body.size(q, 1, "the number of heads")
    kv_heads = body.size(k, 1, "the number of key heads")
    if heads % kv_heads:
        raise ValueError(f"it has {heads} heads of queries and {kv_heads} of keys, allowed: a multiple")
    return heads // kv_heads, body.shape(q)[2] * (heads // kv_heads)


def _with_biases_and_masks(body: Body, products: str, scores: Scores) -> str:
    """Products plus biases, -inf where a mask is false."""
    value, dtype = body.tensor(products), body.dtype(products)
    for bias in scores.biases:
        value = op.add(value, body.tensor(bias))
    for mask in scores.masks:
        value = op.where(body.tensor(mask), value, relax.const(np.asarray(-np.inf, dtype), dtype))
    return body.bind(value)


def _rows_with_keys(body: Body, scores: Scores, dtype: str) -> Any:
    """Bools that broadcast to (…, sequence, 1): whether each row has a key, from masks and biases."""
    lowest = relax.const(np.asarray(-np.inf, dtype), dtype)
    total: Any = relax.const(np.asarray(0, dtype), dtype)
    for bias in scores.biases:
        total = op.add(body.tensor(bias), total)
    for mask in scores.masks:
        total = op.where(body.tensor(mask), total, lowest)
    masked = body.bind(total)
    return op.greater(op.max(body.tensor(masked), -1, keepdims=True), lowest)


def _softmax(body: Body, biased: str, scores: Scores) -> str:
    value, dtype = body.tensor(biased), body.dtype(biased)
    if scores.sink is not None:
        batch, heads, queries, keys = body.shape(biased)
        column = op.broadcast_to(
            op.reshape(body.tensor(scores.sink), [1, heads, 1, 1]), [batch, heads, queries, 1]
        )
        wide = body.bind(op.nn.softmax(op.concat([value, column], 3), axis=-1))
        return body.bind(part(body.tensor(wide), 3, 0, keys))
    if not scores.rows_may_be_empty or not (scores.masks or scores.biases):
        return body.bind(op.nn.softmax(value, axis=-1))
    real = body.tensor(body.bind(_rows_with_keys(body, scores, dtype)))
    zero = relax.const(np.asarray(0, dtype), dtype)
    probabilities = body.bind(op.nn.softmax(op.where(real, value, zero), axis=-1))
    return body.bind(op.where(real, body.tensor(probabilities), zero))


def attend(body: Body, q: str, k: str, v: str, scores: Scores) -> Attended:
    """softmax(q k^T) v with the steps of `scores`."""
    dtype = body.dtype(q)
    batch, heads, queries, _ = body.shape(q)
    keys, width = body.shape(k)[2], body.shape(v)[3]
    group, rows = _group_sizes(body, q, k)
    kv_heads = body.shape(k)[1]
    q_rows = q if group == 1 else body.reshape(q, [batch, kv_heads, rows, body.shape(q)[3]])
    products = body.op("MatMul", q_rows, body.transpose(k, [0, 1, 3, 2]))
    products = body.bind(
        op.multiply(body.tensor(products), relax.const(np.asarray(scores.scale, dtype), dtype))
    )
    if group > 1:
        products = body.reshape(products, [batch, heads, queries, keys])
    if scores.softcap:
        cap = relax.const(np.asarray(scores.softcap, dtype), dtype)
        products = body.bind(op.multiply(op.tanh(op.divide(body.tensor(products), cap)), cap))
    biased = _with_biases_and_masks(body, products, scores) if scores.biases or scores.masks else products
    probabilities = _softmax(body, biased, scores)
    weights = probabilities if group == 1 else body.reshape(probabilities, [batch, kv_heads, rows, keys])
    result = body.op("MatMul", weights, v)
    if group > 1:
        result = body.reshape(result, [batch, heads, queries, width])
    return Attended(result, products, biased, probabilities)
