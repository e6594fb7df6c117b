"""Inputs of convolutions of few terms, as rows: one row of pixels for each term of a result's sum.

A first layer of few channels with many results computes less for each result than it takes to write it. Where
the result is read with channels first, its transpose takes longer than the convolution; a matmul of the
weights and these rows writes channels first.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from kiln.graph.bindings import Array, CallRewriter, integers, shape_of

# Most terms of a sum, and least results for each: a row is written and read once more. Measured on Emerald
# Rapids: with 51 results 2.3 times as fast, with 3 still 1.7 times, but AArch64 takes 1.2 times as many
# instructions with 3.
_MOST_TERMS, _RESULTS_OF_TERM = 32, 16


def suits(kernel: Array, call: Any) -> bool:
    """Whether rows pay for the conv2d `call` of NHWC with `kernel` (HWIO).

    They are for convolutions without padding and groups, of fixed sizes.
    """
    attrs, terms = call.attrs, math.prod(kernel.shape[:3])
    if int(attrs.groups) != 1 or any(integers(attrs.padding)):
        return False
    if not all(isinstance(size, int) for size in [*shape_of(call), *shape_of(call.args[0])]):
        return False
    return 1 < terms <= _MOST_TERMS and kernel.shape[3] >= _RESULTS_OF_TERM * terms


def rows_of_terms(rewriter: CallRewriter, x: Any, kernel: Array, call: Any) -> tuple[Any, Array]:
    """The rows (N, terms, height, width) of x (N, C, H, W), and the weights (O, terms) of `call`."""
    strides, dilation = integers(call.attrs.strides), integers(call.attrs.dilation)
    sizes = [int(size) for size in shape_of(call)[1:3]]
    rows = []
    for i in range(kernel.shape[0]):
        for j in range(kernel.shape[1]):
            first = [i * dilation[0], j * dilation[1]]
            ends = [at + (size - 1) * step + 1 for at, size, step in zip(first, sizes, strides, strict=True)]
            rows.append(rewriter.emit(relax.op.strided_slice(x, [2, 3], first, ends, strides)))
    return rewriter.emit(relax.op.concat(rows, 1)), np.ascontiguousarray(
        kernel.reshape(-1, kernel.shape[3]).T
    )
