"""Attention of ONNX (opsets 23 to 25): grouped queries, masks, past and present, softcap, windows."""

from __future__ import annotations

import numpy as np
from tvm import relax

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

op = relax.op
_FLOAT = 1


def _padded_mask(body: Body, mask: str, keys: object) -> str:
    """`mask` with as many columns as there are keys; the keys beyond its own columns are not attended."""
    shape = body.shape(mask)
    if body.symbols.equal(shape[-1], keys) or shape[-1] == 1:
        return mask
    if not isinstance(shape[-1], int) or not isinstance(keys, int) or shape[-1] > keys:
        raise ValueError(f"its mask has {shape[-1]} columns, allowed: at most {keys}, the number of keys")
    dtype = body.dtype(mask)
    padding = [*shape[:-1], keys - shape[-1]]
    fill = relax.const(np.asarray(False if dtype == "bool" else -np.inf, dtype), dtype)
    return body.bind(op.concat([body.tensor(mask), op.full(padding, fill, dtype)], len(padding) - 1))


def attention(body: Body) -> list[str | None]:
    """Attention of ONNX's own domain."""
    q, k, v, mask, past_key, past_value, lengths = (body.input(index) for index in range(7))
    dtypes = body.dtype(q), body.dtype(v)
    if dtypes[0] != dtypes[1]:
        raise ValueError(
            f"its inputs Q and V are {dtypes[0]} and {dtypes[1]}, allowed: one type; insert a Cast"
        )
    three = body.rank(q) == 3
    heads, kv_heads = body.attribute("q_num_heads", 0), body.attribute("kv_num_heads", 0)
    if three:
        q = split_heads(body, q, int(body.required("q_num_heads")))
        k, v = (split_heads(body, name, int(body.required("kv_num_heads"))) for name in (k, v))
    elif heads not in (0, body.shape(q)[1]) or kv_heads not in (0, body.shape(k)[1]):
        raise ValueError(
            f"its attribute 'q_num_heads' is {heads}, allowed: {body.shape(q)[1]}, the size of axis 1"
        )
    if bool(past_key) != bool(past_value):
        raise ValueError("it has one of 'past_key' and 'past_value', allowed: both or none")
    if past_key and lengths:
        raise ValueError("it has 'nonpad_kv_seqlen' and 'past_key', allowed: one of them")
    k, v = past_and_new(body, past_key, k), past_and_new(body, past_value, v)
    queries, keys = body.shape(q)[2], body.shape(k)[2]
    scale = body.attribute("scale")
    size = body.size(q, 3, "the size of a head")
    how = Scores(1 / np.sqrt(size) if scale is None else float(scale), float(body.attribute("softcap", 0.0)))
    body.only("softmax_precision", _FLOAT, 0)  # sums of the softmax are in float32
    if mask:
        padded = _padded_mask(body, mask, keys)
        (how.masks if body.dtype(mask) == "bool" else how.biases).append(padded)
        how.rows_may_be_empty = True
    offset: object = body.shape(past_key)[2] if past_key else 0
    if lengths:
        count = op.reshape(op.astype(body.tensor(lengths), "int64"), [body.shape(q)[0], 1, 1, 1])
        offset = body.tensor(body.bind(_minus_size(count, queries)))
        how.masks.append(body.bind(op.less(op.reshape(positions(keys), [1, 1, 1, keys]), count)))
        how.rows_may_be_empty = True
    left, right = (int(body.attribute(f"{side}_window_size", -1)) for side in ("left", "right"))
    if min(left, right) < -1:
        raise ValueError(f"its attributes of windows are {left} and {right}, allowed: -1 and more")
    if body.only("is_causal", 0, 1):
        how.masks.append(causal(body, queries, keys, offset))
    if left >= 0 or right >= 0:
        how.masks.append(causal(body, queries, keys, offset, left, right))
        how.rows_may_be_empty = True
    attended = attend(body, q, k, v, how)
    mode = body.only("qk_matmul_output_mode", 0, 1, 2, 3)
    steps = (attended.products, attended.products, attended.biased, attended.probabilities)
    if mode == 0 and how.softcap and body.wants(3):
        raise ValueError("its attribute 'qk_matmul_output_mode' is 0 with a softcap, allowed: 1, 2 or 3")
    return [join_heads(body, attended.result) if three else attended.result, k, v, steps[mode]]


def _minus_size(count: relax.Expr, queries: object) -> relax.Expr:
    """count - queries as int64."""
    length = op.arange(relax.prim_value(queries), relax.prim_value(queries + 1), 1, "int64")  # type: ignore[operator]
    return op.subtract(count, op.reshape(length, [1, 1, 1, 1]))


ONNX: dict[str, Expansion] = {"Attention": attention}
