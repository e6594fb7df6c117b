"""softmax(scale · q · k' + mask) · v without the matrix of scores in memory."""

import triton
import triton.language as tl

from .epilogue import product


@triton.jit
def attention(
    q, k, v, mask, y, queries, keys,
    HEADS: tl.constexpr, SIZE: tl.constexpr, VALUES: tl.constexpr,
    Q_BATCH: tl.constexpr, Q_HEAD: tl.constexpr, Q_ROW: tl.constexpr, Q_AT: tl.constexpr,
    K_BATCH: tl.constexpr, K_HEAD: tl.constexpr, K_ROW: tl.constexpr, K_AT: tl.constexpr,
    K_INNER: tl.constexpr,
    V_BATCH: tl.constexpr, V_HEAD: tl.constexpr, V_ROW: tl.constexpr, V_AT: tl.constexpr,
    Y_BATCH: tl.constexpr, Y_HEAD: tl.constexpr, Y_ROW: tl.constexpr,
    MASK_BATCH: tl.constexpr, MASK_HEAD: tl.constexpr, MASK_ROW: tl.constexpr, HAS_MASK: tl.constexpr,
    SCALE: tl.constexpr, CAUSAL: tl.constexpr, TF32: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """Attention of each (batch, head): a row of y is the mean of the rows of v by the weights of its query.

    X_BATCH, X_HEAD, X_ROW, X_INNER (1 but for k), X_AT: strides of x and the place of its first element; a
    negative stride is that number times the rows of x. D and E are SIZE and VALUES, the width of q and k and
    that of v, padded to powers of two. The mask, in float32, is added to the scaled scores; a stride of 0
    repeats it.
    CAUSAL: query i sees keys up to i + keys - queries.
    """
    log2e: tl.constexpr = 1.4426950408889634
    head, batch = (tl.program_id(1) % HEADS).to(tl.int64), (tl.program_id(1) // HEADS).to(tl.int64)
    row = tl.program_id(0) * M + tl.arange(0, M)
    d, e, n = tl.arange(0, D), tl.arange(0, E), tl.arange(0, N)
    read = tl.minimum(row, queries - 1)
    q += Q_AT + batch * _along(Q_BATCH, queries) + head * _along(Q_HEAD, queries)
    k += K_AT + batch * _along(K_BATCH, keys) + head * _along(K_HEAD, keys)
    v += V_AT + batch * _along(V_BATCH, keys) + head * _along(V_HEAD, keys)
    y += batch * _along(Y_BATCH, queries) + head * _along(Y_HEAD, queries)
    if HAS_MASK:
        along = _mask_along(MASK_BATCH, queries, keys), _mask_along(MASK_HEAD, queries, keys)
        row_mask = mask + batch * along[0] + head * along[1]
    asked = tl.load(q + read[:, None] * Q_ROW + d[None, :], mask=(d < SIZE)[None, :], other=0.0)
    most = tl.full((M,), -1.0e30, tl.float32)
    sums = tl.zeros((M,), tl.float32)
    total = tl.zeros((M, E), tl.float32)
    end = keys
    if CAUSAL:
        end = tl.maximum(0, tl.minimum(keys, tl.program_id(0) * M + M + keys - queries))
    for begin in tl.range(0, end, N):
        key = begin + n
        seen = tl.minimum(key, keys - 1)
        places = k + seen[None, :] * K_ROW + d[:, None] * _along(K_INNER, keys)
        known = tl.load(places, mask=(d < SIZE)[:, None], other=0.0)
        scores = product(asked, known, tl.zeros((M, N), tl.float32), TF32) * (SCALE * log2e)
        if HAS_MASK:
            added = row_mask + read[:, None] * _mask_along(MASK_ROW, queries, keys) + seen[None, :]
            scores += tl.load(added) * log2e
        inside, scores = _seen(scores, row, key, queries, keys, CAUSAL)
        new = tl.maximum(most, tl.max(scores, 1))
        weights = tl.where(inside, tl.exp2(scores - new[:, None]), 0.0)
        old = tl.exp2(most - new)
        sums = sums * old + tl.sum(weights, 1)
        most = new
        values = tl.load(v + seen[:, None] * V_ROW + e[None, :], mask=(e < VALUES)[None, :], other=0.0)
        total = product(weights.to(v.dtype.element_ty), values, total * old[:, None], TF32)
    inside = (row < queries)[:, None] & (e < VALUES)[None, :]
    mean = (total / sums[:, None]).to(y.dtype.element_ty)
    tl.store(y + row[:, None] * Y_ROW + e[None, :], mean, mask=inside)


@triton.jit
def _seen(scores, row, key, queries, keys, CAUSAL: tl.constexpr):
    """Which keys each query attends to, as booleans, and the scores, -1e30 for the other keys.

    Where a mask of -inf hides all keys of a query, all keys have the same weight.
    """
    inside = (key < keys)[None, :]
    if CAUSAL:
        inside = inside & (key[None, :] <= row[:, None] + keys - queries)
    scores = tl.where(scores < -1.0e29, -1.0e29, scores)
    return inside, tl.where(inside, scores, -1.0e30)


@triton.jit
def _along(STRIDE: tl.constexpr, rows):
    """A stride in elements: STRIDE, or for a negative one -STRIDE * rows, of a tensor of dynamic size."""
    if STRIDE < 0:
        return rows * -STRIDE
    else:
        return STRIDE


@triton.jit
def _mask_along(KIND: tl.constexpr, queries, keys):
    """A stride of the mask in elements: KIND * keys, or for a negative KIND -KIND * queries * keys."""
    if KIND < 0:
        return queries * keys * -KIND
    else:
        return keys * KIND
