"""Fourier transforms of a length that is known before the model runs, as products with matrices.

A transform of n1 n2 numbers is n2 transforms of n1 numbers, products with constant complex numbers, and n1
transforms of n2 numbers (Cooley and Tukey, 1965). For 512 real numbers the matrices have 15 KB in place of
1 MB, and the run 51,000 in place of 263,000 multiplications. Short transforms have one matrix, and so have
many at once, whose numbers between the two factors would need more memory than it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax, tirx

from kiln.config.sizes import ceil_div

op = relax.op
_LEAST = 64  # length from which a transform has two factors
_LEAST_FACTOR = 4
_EXACT = ("float32", "float64")  # with fewer bits the numbers between the two factors are too coarse
Matrix = npt.NDArray[np.float64]


def matrix(elements: int, numbers: int, length: int, frequencies: int, inverse: bool) -> Matrix:
    """M [given * parts, kept * 2], with (y as pairs) = (x as `numbers` numbers an element) M.

    `length`: of the transform; elements of x from `length` on are ignored. `frequencies`: their number in y.
    """
    turns = np.outer(np.arange(elements), np.arange(frequencies)) % length / length * 2 * np.pi
    sign, scale = (1.0, 1.0 / length) if inverse else (-1.0, 1.0)
    cosine, sine = np.cos(turns) * scale, sign * np.sin(turns) * scale
    cosine[length:], sine[length:] = 0, 0
    rows = [np.stack([cosine, sine], -1), np.stack([-sine, cosine], -1)][:numbers]
    return np.stack(rows, 1).reshape(elements * numbers, frequencies * 2)


def transform(
    emit: Callable[[Any], Any],
    x: Any,
    outer: Sequence[Any],
    sizes: tuple[int, int],
    length: int,
    frequencies: int,
    inverse: bool = False,
) -> Any:
    """The transform of `length` numbers of `x` [*outer, elements, 1 or 2]: [*outer, frequencies, 2].

    `outer`: PrimExpr sizes. `sizes`: elements, of which those beyond `length` are ignored, and 1 for real
    numbers or 2 for complex ones.
    """
    dtype, (elements, numbers) = str(x.ty.dtype), sizes
    factor = _factor(length) if dtype in _EXACT and _are_few(outer, frequencies) else 1
    if factor > 1:
        fitted = fit(emit, x, len(outer), elements, length)
        return _factored(emit, fitted, outer, numbers, (factor, length // factor), frequencies, inverse)
    flat = emit(op.reshape(x, [*outer, elements * numbers]))
    weights = matrix(elements, numbers, length, frequencies, inverse).astype(dtype)
    return emit(op.reshape(emit(op.matmul(flat, relax.const(weights, dtype))), [*outer, frequencies, 2]))


def _are_few(outer: Sequence[Any], frequencies: int) -> bool:
    """Whether the numbers between two factors, of `outer` transforms, are fewer than those of one matrix."""
    sizes = [int(size) for size in outer if isinstance(size, int | tirx.IntImm)]
    return len(sizes) == len(outer) and math.prod(sizes) <= frequencies


def _factor(length: int) -> int:
    """The greatest factor of `length` up to its root; 1 where the transform has one matrix."""
    if length < _LEAST:
        return 1
    return next((size for size in range(math.isqrt(length), _LEAST_FACTOR - 1, -1) if length % size == 0), 1)


def fit(emit: Callable[[Any], Any], x: Any, axis: int, elements: int, length: int) -> Any:
    """`x` with `length` of its elements along `axis`, the last axis but one: zeros follow its own."""
    if elements > length:
        return emit(op.strided_slice(x, [axis], [0], [length]))
    if elements < length:
        return emit(op.nn.pad(x, [*[0, 0] * axis, 0, length - elements, 0, 0]))
    return x


def _factored(
    emit: Callable[[Any], Any],
    x: Any,
    outer: Sequence[Any],
    numbers: int,
    factors: tuple[int, int],
    frequencies: int,
    inverse: bool,
) -> Any:
    """The transform of x[n2 i + j] as transforms over i, then over j: y[k + n1 l] is at [k, l].

    `factors`: n1 and n2.
    """
    (first, second), rank, dtype = factors, len(outer), str(x.ty.dtype)

    def product(lines: Any, weights: Matrix, rows: int, kept: int) -> Any:
        """The transforms of rows of `lines` [*outer, rows, columns, parts]: [*outer, rows, kept, 2]."""
        flat = emit(op.reshape(lines, [*outer, rows, len(weights)]))
        made = emit(op.matmul(flat, relax.const(weights.astype(dtype), dtype)))
        return emit(op.reshape(made, [*outer, rows, kept, 2]))

    def exchanged(pairs: Any) -> Any:
        return emit(op.permute_dims(pairs, [*range(rank), rank + 1, rank, rank + 2]))

    lines = exchanged(emit(op.reshape(x, [*outer, first, second, numbers])))
    turned = _turned(
        emit, product(lines, matrix(first, numbers, first, first, inverse), second, first), factors, inverse
    )
    kept = ceil_div(frequencies, first)  # frequencies of the second factor that are read
    made = product(exchanged(turned), matrix(second, 2, second, kept, inverse), first, kept)
    ordered = emit(op.reshape(exchanged(made), [*outer, kept * first, 2]))
    if kept * first == frequencies:
        return ordered
    return emit(op.strided_slice(ordered, [rank], [0], [frequencies]))


def _turned(emit: Callable[[Any], Any], pairs: Any, factors: tuple[int, int], inverse: bool) -> Any:
    """The complex numbers of `pairs` [..., j, k, 2] turned by -j k / (n1 n2) turns; of an inverse by +."""
    (first, second), dtype, axis = factors, str(pairs.ty.dtype), len(pairs.ty.shape) - 1
    turns = np.outer(np.arange(second), np.arange(first)) / (first * second) * 2 * np.pi
    sine = np.sin(turns) if inverse else -np.sin(turns)
    a, b = (
        emit(op.squeeze(emit(op.strided_slice(pairs, [axis], [part], [part + 1])), [axis])) for part in (0, 1)
    )
    c, s = (relax.const(values.astype(dtype), dtype) for values in (np.cos(turns), sine))
    real = emit(op.subtract(emit(op.multiply(a, c)), emit(op.multiply(b, s))))
    imaginary = emit(op.add(emit(op.multiply(a, s)), emit(op.multiply(b, c))))
    return emit(op.stack([real, imaginary], axis=axis))
