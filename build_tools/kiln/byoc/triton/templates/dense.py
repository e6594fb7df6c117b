"""x · w, with a layer norm before and a bias, a residual and an activation after it."""

import triton
import triton.language as tl

from .epilogue import activated, finish, product


@triton.jit
def _moments(x, valid_row, COLUMNS: tl.constexpr, STEP: tl.constexpr, EPSILON: tl.constexpr, M: tl.constexpr):
    """Mean and reciprocal standard deviation of the M rows `valid_row` of x (rows, COLUMNS), in one pass.

    Both sums are of each element minus the row's first element, which is at most sqrt(COLUMNS) standard
    deviations from the mean: E[d^2] - E[d]^2 then cancels few bits. The loop is unrolled, so that all loads
    are in flight at once.
    """
    first = tl.load(x + valid_row * COLUMNS).to(tl.float32)
    total = tl.zeros((M,), tl.float32)
    squares = tl.zeros((M,), tl.float32)
    for begin in tl.static_range(0, COLUMNS, STEP):
        k = begin + tl.arange(0, STEP)
        if begin + STEP <= COLUMNS:
            value = tl.load(x + valid_row[:, None] * COLUMNS + k[None, :]).to(tl.float32)
            difference = value - first[:, None]
        else:
            inside = (k < COLUMNS)[None, :]
            value = tl.load(x + valid_row[:, None] * COLUMNS + k[None, :], mask=inside, other=0.0)
            difference = tl.where(inside, value.to(tl.float32) - first[:, None], 0.0)
        total += tl.sum(difference, 1)
        squares += tl.sum(difference * difference, 1)
    mean = total / COLUMNS
    variance = tl.maximum(squares / COLUMNS - mean * mean, 0.0)
    return first + mean, 1.0 / tl.sqrt(variance + EPSILON)


@triton.jit
def dense(
    x, w, sums, bias, residual, y, rows,
    DEPTH: tl.constexpr, COLUMNS: tl.constexpr, W_COLUMNS: tl.constexpr, SPLIT: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, NORM: tl.constexpr, EPSILON: tl.constexpr,
    ACTIVATION: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, TF32: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """y (rows, COLUMNS) = activation(x (rows, DEPTH) · w + bias (W_COLUMNS) + residual (rows, COLUMNS)).

    w (DEPTH padded to K, W_COLUMNS); W_COLUMNS is COLUMNS padded to N; the padding of w and bias is zeros.
    SPLIT > 1: block z sums a part of the depth, without the epilogue, into y (SPLIT, rows, COLUMNS). NORM: x
    becomes (x - mean) / deviation. With 16-bit or float32 operands, whose products are exact or nearly so,
    this happens after the product: the mean is multiplied by sums (W_COLUMNS), the sums of the columns of w.
    With TF32, x is normalised and rounded before the product.
    """
    row = tl.program_id(0) * M + tl.arange(0, M)
    column = tl.program_id(1) * N + tl.arange(0, N)
    part = tl.program_id(2)
    # Rows past the end load the last row: a load without a mask along an axis can be wide and asynchronous.
    valid_row = tl.minimum(row, rows - 1)
    if NORM:
        mean, inverse_deviation = _moments(x, valid_row, DEPTH, K, EPSILON, M)
    total = tl.zeros((M, N), tl.float32)
    steps: tl.constexpr = (DEPTH + K - 1) // K
    steps_of_part: tl.constexpr = (steps + SPLIT - 1) // SPLIT
    for step in tl.range(part * steps_of_part, tl.minimum(part * steps_of_part + steps_of_part, steps)):
        k = step * K + tl.arange(0, K)
        if DEPTH % K == 0:
            a = tl.load(x + valid_row[:, None] * DEPTH + k[None, :])
        else:
            a = tl.load(x + valid_row[:, None] * DEPTH + k[None, :], mask=(k < DEPTH)[None, :], other=0.0)
        if NORM and TF32:
            normalised = (a.to(tl.float32) - mean[:, None]) * inverse_deviation[:, None]
            a = tl.where((k < DEPTH)[None, :], normalised, 0.0).to(x.dtype.element_ty)
        total = product(a, tl.load(w + k[:, None] * W_COLUMNS + column[None, :]), total, TF32)
    if NORM and not TF32:
        total = (total - mean[:, None] * tl.load(sums + column)[None, :]) * inverse_deviation[:, None]
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
    """y (batch, rows, columns) = x (batch, rows, depth) · w (batch, depth, columns); w is no constant.

    TRANSPOSED: w is stored as (batch, columns, depth). WHOLE: depth is a multiple of K.
    """
    batch = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * M + tl.arange(0, M)
    column = tl.program_id(1) * N + tl.arange(0, N)
    x += batch * rows * depth
    w += batch * depth * columns
    y += batch * rows * columns
    valid_row, valid_column = tl.minimum(row, rows - 1), tl.minimum(column, columns - 1)
    total = tl.zeros((M, N), tl.float32)
    for begin in tl.range(0, depth, K):
        k = begin + tl.arange(0, K)
        x_pointers = x + valid_row[:, None] * depth + k[None, :]
        if TRANSPOSED:
            w_pointers = w + valid_column[None, :] * depth + k[:, None]
        else:
            w_pointers = w + k[:, None] * columns + valid_column[None, :]
        if WHOLE:
            a, b = tl.load(x_pointers), tl.load(w_pointers)
        else:
            a = tl.load(x_pointers, mask=(k < depth)[None, :], other=0.0)
            b = tl.load(w_pointers, mask=(k < depth)[:, None], other=0.0)
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
    index = tl.program_id(0) * N + tl.arange(0, N)
    inside = index < rows * COLUMNS
    total = tl.zeros((N,), tl.float32)
    for part in tl.static_range(SPLIT):
        total += tl.load(parts + part * rows * COLUMNS + index, mask=inside, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias + index % COLUMNS, mask=inside, other=0.0)
    if HAS_RESIDUAL:
        total += tl.load(residual + index, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + index, activated(total, ACTIVATION, LOW, HIGH).to(y.dtype.element_ty), mask=inside)
