"""The linear transforms of Winograd convolution with 3x3 weights, for output tiles of 2x2 and 4x4.

    Y = A' [(G g G') * (B' d B)] A      d: (m+2)x(m+2) inputs, g: 3x3 weights, Y: m x m outputs

after Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2015). The transforms of data and
of outputs are written as sums with shared terms; each transforms one line of m+2 values at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import tirx
from tvm.ir import Expr

from kiln.kernels.cpu.gemm_tile import Tile, pack
from kiln.tir.builder import Array, bind

# G by m: maps three weights to m + 2 values.
WEIGHTS = {
    2: np.array([[1, 0, 0], [1 / 2, 1 / 2, 1 / 2], [1 / 2, -1 / 2, 1 / 2], [0, 0, 1]]),
    4: np.array(
        [
            [1 / 4, 0, 0],
            [-1 / 6, -1 / 6, -1 / 6],
            [-1 / 6, 1 / 6, -1 / 6],
            [1 / 24, 1 / 12, 1 / 6],
            [1 / 24, -1 / 12, 1 / 6],
            [0, 0, 1],
        ]
    ),
}


def growth(m: int) -> float:
    """Number of weights after the transform divided by the number before."""
    return (m + 2) ** 2 / 9


def pack_weights(weights: Array, m: int, tile: Tile) -> Array:
    """Transform and pack weights [3,3,C,O] → [(m+2)^2][panel][C][NR], flat.

    The transform is computed in float64 and rounded once.
    """
    to = WEIGHTS[m]
    transformed = np.einsum("xi,ijco,yj->xyco", to, weights.astype("float64"), to).astype(weights.dtype)
    planes = transformed.reshape(-1, *weights.shape[2:])
    return np.concatenate([pack(plane, tile) for plane in planes])


def _scaled(value: Expr, factor: int) -> Expr:
    """value * factor, in float32, for a scalar or a vector."""
    constant: Any = tirx.const(float(factor), "float32")
    lanes = int(value.ty.dtype.lanes)
    return value * (tirx.Broadcast(constant, lanes) if lanes > 1 else constant)


def data_line(d: Sequence[Expr]) -> list[Expr]:
    """The product of B' and a line of m + 2 inputs: m + 2 values."""
    if len(d) == 4:
        return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]
    even, odd = bind(d[4] - _scaled(d[2], 4)), bind(d[3] - _scaled(d[1], 4))
    outer, inner = bind(d[4] - d[2]), bind(_scaled(d[3] - d[1], 2))
    return [
        _scaled(d[0], 4) - _scaled(d[2], 5) + d[4],
        even + odd,
        even - odd,
        outer + inner,
        outer - inner,
        _scaled(d[1], 4) - _scaled(d[3], 5) + d[5],
    ]


def output_line(p: Sequence[Expr]) -> list[Expr]:
    """The product of A' and a line of m + 2 values: m outputs."""
    if len(p) == 4:
        return [p[0] + p[1] + p[2], p[1] - p[2] - p[3]]
    sum1, sum2 = bind(p[1] + p[2]), bind(p[3] + p[4])
    difference1, difference2 = bind(p[1] - p[2]), bind(p[3] - p[4])
    return [
        p[0] + sum1 + sum2,
        difference1 + _scaled(difference2, 2),
        sum1 + _scaled(sum2, 4),
        difference1 + _scaled(difference2, 8) + p[5],
    ]
