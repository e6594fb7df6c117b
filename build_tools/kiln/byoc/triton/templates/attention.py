"""softmax(scale · q · k' + mask) · v without the matrix of scores in memory."""

import triton
import triton.language as tl

from .epilogue import product


@triton.jit
def attention(
    q, k, v, mask, y, queries, keys,
    HEADS: tl.constexpr, SIZE: tl.constexpr, VALUES: tl.constexpr,
    Q_BATCH: tl.constexpr, Q_HEAD: tl.constexpr, Q_ROW: tl.constexpr, Q_OFFSET: tl.constexpr,
    K_BATCH: tl.constexpr, K_HEAD: tl.constexpr, K_ROW: tl.constexpr, K_OFFSET: tl.constexpr,
    K_INNER: tl.constexpr,
    V_BATCH: tl.constexpr, V_HEAD: tl.constexpr, V_ROW: tl.constexpr, V_OFFSET: tl.constexpr,
    Y_BATCH: tl.constexpr, Y_HEAD: tl.constexpr, Y_ROW: tl.constexpr,
    MASK_BATCH: tl.constexpr, MASK_HEAD: tl.constexpr, MASK_ROW: tl.constexpr, HAS_MASK: tl.constexpr,
    SCALE: tl.constexpr, CAUSAL: tl.constexpr, TF32: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """Attention of each (batch, head): a row of y is the mean of the rows of v by the weights of its query.

    For X of Q, K, V and Y: X_BATCH, X_HEAD, X_ROW and K_INNER are the strides in elements of its axes, where
    -n stands for n times its rows, and other innermost strides are 1; X_OFFSET is the place of its first
    element. D and E are SIZE and VALUES, the width of q and k and that of v, padded to powers of two. The
    mask, in float32, is added to the scaled scores; a stride of 0 repeats it. CAUSAL: query i attends to the
    keys up to i + keys - queries.
    """
    log2e: tl.constexpr = 1.4426950408889634
    head, batch = (tl.program_id(1) % HEADS).to(tl.int64), (tl.program_id(1) // HEADS).to(tl.int64)
    row = tl.program_id(0) * M + tl.arange(0, M)
    d, e, key_offset = tl.arange(0, D), tl.arange(0, E), tl.arange(0, N)
    valid_row = tl.minimum(row, queries - 1)
    q += Q_OFFSET + batch * _stride(Q_BATCH, queries) + head * _stride(Q_HEAD, queries)
    k += K_OFFSET + batch * _stride(K_BATCH, keys) + head * _stride(K_HEAD, keys)
    v += V_OFFSET + batch * _stride(V_BATCH, keys) + head * _stride(V_HEAD, keys)
    y += batch * _stride(Y_BATCH, queries) + head * _stride(Y_HEAD, queries)
    if HAS_MASK:
        strides = _mask_stride(MASK_BATCH, queries, keys), _mask_stride(MASK_HEAD, queries, keys)
        head_mask = mask + batch * strides[0] + head * strides[1]
    query = tl.load(q + valid_row[:, None] * Q_ROW + d[None, :], mask=(d < SIZE)[None, :], other=0.0)
    maximum = tl.full((M,), -1.0e30, tl.float32)
    weight_sums = tl.zeros((M,), tl.float32)
    total = tl.zeros((M, E), tl.float32)
    end = keys
    if CAUSAL:
        end = tl.maximum(0, tl.minimum(keys, tl.program_id(0) * M + M + keys - queries))
    for begin in tl.range(0, end, N):
        key = begin + key_offset
        valid_key = tl.minimum(key, keys - 1)
        k_pointers = k + valid_key[None, :] * K_ROW + d[:, None] * _stride(K_INNER, keys)
        key_block = tl.load(k_pointers, mask=(d < SIZE)[:, None], other=0.0)
        scores = product(query, key_block, tl.zeros((M, N), tl.float32), TF32) * (SCALE * log2e)
        if HAS_MASK:
            mask_rows = head_mask + valid_row[:, None] * _mask_stride(MASK_ROW, queries, keys)
            scores += tl.load(mask_rows + valid_key[None, :]) * log2e
        inside, scores = _attended(scores, row, key, queries, keys, CAUSAL)
        new_maximum = tl.maximum(maximum, tl.max(scores, 1))
        weights = tl.where(inside, tl.exp2(scores - new_maximum[:, None]), 0.0)
        correction = tl.exp2(maximum - new_maximum)
        weight_sums = weight_sums * correction + tl.sum(weights, 1)
        maximum = new_maximum
        values = tl.load(v + valid_key[:, None] * V_ROW + e[None, :], mask=(e < VALUES)[None, :], other=0.0)
        total = product(weights.to(v.dtype.element_ty), values, total * correction[:, None], TF32)
    inside = (row < queries)[:, None] & (e < VALUES)[None, :]
    mean = (total / weight_sums[:, None]).to(y.dtype.element_ty)
    tl.store(y + row[:, None] * Y_ROW + e[None, :], mean, mask=inside)


@triton.jit
def _attended(scores, row, key, queries, keys, CAUSAL: tl.constexpr):
    """Which keys each query attends to, as booleans, and the scores, -1e30 for the other keys.

    Where a mask of -inf hides all keys of a query, all keys have the same weight.
    """
    is_attended = (key < keys)[None, :]
    if CAUSAL:
        is_attended = is_attended & (key[None, :] <= row[:, None] + keys - queries)
    scores = tl.where(scores < -1.0e29, -1.0e29, scores)
    return is_attended, tl.where(is_attended, scores, -1.0e30)


@triton.jit
def _stride(STRIDE: tl.constexpr, rows):
    """A stride in elements: STRIDE, or for a negative one -STRIDE * rows, of a tensor of dynamic size."""
    if STRIDE < 0:
        return rows * -STRIDE
    else:
        return STRIDE


@triton.jit
def _mask_stride(KIND: tl.constexpr, queries, keys):
    """A stride of the mask in elements: KIND * keys, or for a negative KIND -KIND * queries * keys."""
    if KIND < 0:
        return queries * keys * -KIND
    else:
        return keys * KIND
