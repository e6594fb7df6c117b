"""x · w, with a layer norm before and a bias, a residual and an activation after it."""

import triton
import triton.language as tl

from .epilogue import activated, finish, product


@triton.jit
def _moments(x, read, COLUMNS: tl.constexpr, STEP: tl.constexpr, EPSILON: tl.constexpr, M: tl.constexpr):
    """Mean and reciprocal standard deviation of the M rows `read` of x (rows, COLUMNS), in one pass.

    Both sums are of each element minus the row's first element, which is at most sqrt(COLUMNS) standard
    deviations from the mean: E[d^2] - E[d]^2 then cancels few bits. The loop is unrolled, so that all loads
    are in flight at once.
    """
    first = tl.load(x + read * COLUMNS).to(tl.float32)
    total = tl.zeros((M,), tl.float32)
    squares = tl.zeros((M,), tl.float32)
    for begin in tl.static_range(0, COLUMNS, STEP):
        k = begin + tl.arange(0, STEP)
        if begin + STEP <= COLUMNS:
            away = tl.load(x + read[:, None] * COLUMNS + k[None, :]).to(tl.float32) - first[:, None]
        else:
            inside = (k < COLUMNS)[None, :]
            value = tl.load(x + read[:, None] * COLUMNS + k[None, :], mask=inside, other=0.0).to(tl.float32)
            away = tl.where(inside, value - first[:, None], 0.0)
        total += tl.sum(away, 1)
        squares += tl.sum(away * away, 1)
    mean = total / COLUMNS
    spread = tl.maximum(squares / COLUMNS - mean * mean, 0.0)
    return first + mean, 1.0 / tl.sqrt(spread + EPSILON)


@triton.jit
def dense(
    x, w, sums, bias, residual, y, rows,
    DEPTH: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr, SPLIT: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, NORM: tl.constexpr, EPSILON: tl.constexpr,
    ACTIVATION: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, TF32: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """y (rows, COLUMNS) = activation(x (rows, DEPTH) · w (DEPTH padded to K, WIDE) + bias (WIDE) + residual).

    WIDE is COLUMNS padded to N; the padding of w and bias is zeros. SPLIT > 1: block z sums a part of the
    depth, without the epilogue, into y (SPLIT, rows, COLUMNS). NORM: x becomes (x - mean) / deviation. With
    16-bit or float32 operands, whose products are exact or nearly so, this happens after the product: sums
    (WIDE) are those of the columns of w, which the mean multiplies. With TF32 x is normalised and rounded.
    """
    row = tl.program_id(0) * M + tl.arange(0, M)
    column = tl.program_id(1) * N + tl.arange(0, N)
    part = tl.program_id(2)
    # Rows past the end read the last one: a load without a mask along an axis can be wide and asynchronous.
    read = tl.minimum(row, rows - 1)
    if NORM:
        mean, scale = _moments(x, read, DEPTH, K, EPSILON, M)
    total = tl.zeros((M, N), tl.float32)
    steps: tl.constexpr = (DEPTH + K - 1) // K
    each: tl.constexpr = (steps + SPLIT - 1) // SPLIT
    for step in tl.range(part * each, tl.minimum(part * each + each, steps)):
        k = step * K + tl.arange(0, K)
        if DEPTH % K == 0:
            a = tl.load(x + read[:, None] * DEPTH + k[None, :])
        else:
            a = tl.load(x + read[:, None] * DEPTH + k[None, :], mask=(k < DEPTH)[None, :], other=0.0)
        if NORM and TF32:
            normal = (a.to(tl.float32) - mean[:, None]) * scale[:, None]
            a = tl.where((k < DEPTH)[None, :], normal, 0.0).to(x.dtype.element_ty)
        total = product(a, tl.load(w + k[:, None] * WIDE + column[None, :]), total, TF32)
    if NORM and not TF32:
        total = (total - mean[:, None] * tl.load(sums + column)[None, :]) * scale[:, None]
    finish(
        total, bias, residual, y, row, column, part, rows,
        COLUMNS, SPLIT, HAS_BIAS, HAS_RESIDUAL, ACTIVATION, LOW, HIGH,
    )  # fmt: skip


@triton.jit
def matmul(
    x, w, y, rows, columns, depth,
    TRANSPOSED: tl.constexpr, TF32: tl.constexpr, WHOLE: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """y (batch, rows, columns) = x (batch, rows, depth) · w (batch, depth, columns), both computed.

    TRANSPOSED: w is stored as (batch, columns, depth). WHOLE: depth is a multiple of K.
    """
    batch = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * M + tl.arange(0, M)
    column = tl.program_id(1) * N + tl.arange(0, N)
    x += batch * rows * depth
    w += batch * depth * columns
    y += batch * rows * columns
    read, across = tl.minimum(row, rows - 1), tl.minimum(column, columns - 1)
    total = tl.zeros((M, N), tl.float32)
    for begin in tl.range(0, depth, K):
        k = begin + tl.arange(0, K)
        places = x + read[:, None] * depth + k[None, :]
        weights = w + (
            across[None, :] * depth + k[:, None] if TRANSPOSED else k[:, None] * columns + across[None, :]
        )
        if WHOLE:
            a, b = tl.load(places), tl.load(weights)
        else:
            a = tl.load(places, mask=(k < depth)[None, :], other=0.0)
            b = tl.load(weights, mask=(k < depth)[:, None], other=0.0)
        total = product(a, b, total, TF32)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    tl.store(y + row[:, None] * columns + column[None, :], total.to(y.dtype.element_ty), mask=inside)


@triton.jit
def sum_parts(
    parts, bias, residual, y, rows,
    COLUMNS: tl.constexpr, SPLIT: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    ACTIVATION: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """y (rows, COLUMNS) = activation(sum of parts (SPLIT, rows, COLUMNS), in order, + bias + residual)."""
    place = tl.program_id(0) * N + tl.arange(0, N)
    inside = place < rows * COLUMNS
    total = tl.zeros((N,), tl.float32)
    for part in tl.static_range(SPLIT):
        total += tl.load(parts + part * rows * COLUMNS + place, mask=inside, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias + place % COLUMNS, mask=inside, other=0.0)
    if HAS_RESIDUAL:
        total += tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + place, activated(total, ACTIVATION, LOW, HIGH).to(y.dtype.element_ty), mask=inside)
