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

from kiln.extents import shape_of
from kiln.graph.bindings import Array, CallRewriter, integers

# Most terms of a sum, and least results for each: a row is written and read once more. Measured on Emerald
# Rapids: with 51 results 2.3 times as fast, with 3 1.3 to 3.8 times, with 2 as fast or 0.8 times with SSE.
# AArch64 takes 1.2 times as many instructions with 3.
_MOST_TERMS, _RESULTS_OF_TERM = 32, 16
_RESULTS_BY_ISA = {"sse4": 3, "avx2": 2, "avx512": 2}


def suits(kernel: Array, call: relax.Call, isa: str) -> bool:
    """Whether rows pay on processors of `isa` for the conv2d `call` of NHWC with `kernel` (HWIO).

    They are for convolutions without groups, of fixed sizes.
    """
    terms = math.prod(kernel.shape[:3])
    if int(call.attrs.groups) != 1:
        return False
    if not all(isinstance(size, int) for size in [*shape_of(call), *shape_of(call.args[0])]):
        return False
    fewest = _RESULTS_BY_ISA.get(isa, _RESULTS_OF_TERM) * terms
    return 1 < terms <= _MOST_TERMS and kernel.shape[3] >= fewest


def rows_of_terms(rewriter: CallRewriter, x: Any, kernel: Array, call: relax.Call) -> tuple[Any, Array]:
    """The rows (N, terms, height, width) of x (N, C, H, W), and the weights (O, terms) of `call`."""
    strides, dilation = integers(call.attrs.strides), integers(call.attrs.dilation)
    sizes = [int(size) for size in shape_of(call)[1:3]]
    x = _padded(rewriter, x, integers(call.attrs.padding))
    rows = []
    for i in range(kernel.shape[0]):
        for j in range(kernel.shape[1]):
            first = [i * dilation[0], j * dilation[1]]
            ends = [at + (size - 1) * step + 1 for at, size, step in zip(first, sizes, strides, strict=True)]
            rows.append(rewriter.emit(relax.op.strided_slice(x, [2, 3], first, ends, strides)))
    return rewriter.emit(relax.op.concat(rows, 1)), np.ascontiguousarray(
        kernel.reshape(-1, kernel.shape[3]).T
    )


def _padded(rewriter: CallRewriter, x: Any, padding: list[int]) -> Any:
    """x (N, C, H, W) with `padding` (top, left, bottom, right) of zeros.

    As images of one channel, channels last: lower/views/in_place_padding.py keeps such a padding separate
    from the slices, which otherwise would ask for each element whether it is padding.
    """
    if not any(padding):
        return x
    batch, channels, height, width = (int(size) for size in shape_of(x))
    top, left, bottom, right = padding
    images = rewriter.emit(relax.op.reshape(x, [batch * channels, height, width, 1]))
    images = rewriter.emit(relax.op.nn.pad(images, [0, 0, top, bottom, left, right, 0, 0]))
    sizes = [batch, channels, top + height + bottom, left + width + right]
    return rewriter.emit(relax.op.reshape(images, sizes))
