"""com.microsoft.Inverse, which ONNX Runtime's exporter for PyTorch writes for torch.inverse."""

from __future__ import annotations

import numpy as np

from kiln.frontend.onnx.body import Body, Expansion

_MOST_ROWS = 32  # a column takes about fifteen nodes


def inverse(body: Body) -> list[str]:
    """Inverse of matrices [..., n, n]: Gauss-Jordan with the greatest pivots, unrolled by columns."""
    x = body.input(0)
    rank, dtype = body.rank(x), body.dtype(x)
    rows, columns = (body.size(x, rank + axis, "the size of its matrices") for axis in (-2, -1))
    if rows != columns or rows > _MOST_ROWS:
        raise ValueError(f"a matrix of {rows} x {columns}, allowed: square, with at most {_MOST_ROWS} rows")
    identity = body.op("Expand", body.const(np.eye(rows, dtype=dtype)), body.op("Shape", x))
    both = body.op("Concat", x, identity, axis=-1)
    numbers, last = body.const(np.arange(rows)), body.const([-1])

    def cut(name: str, axis: int, first: int, end: int) -> str:
        return body.op("Slice", name, *(body.const([number]) for number in (first, end, axis)))

    for k in range(rows):  # the columns before k are those of the identity, and left out
        column = cut(both, -1, 0, 1)
        below = body.op("Squeeze", body.op("Abs", cut(column, -2, k, rows)), last)
        pivot = body.op("Add", body.op("ArgMax", below, axis=-1, keepdims=1), body.const([k]))
        here = body.const(np.arange(rows) == k)
        exchanged = body.op("Where", body.op("Equal", numbers, pivot), body.const([k]), numbers)
        order = body.op("Unsqueeze", body.op("Where", here, pivot, exchanged), last)
        order = body.op("Expand", order, body.op("Shape", both))
        both = body.op("GatherElements", both, order, axis=-2)
        column, both = cut(both, -1, 0, 1), cut(both, -1, 1, 2 * rows)
        row = body.op("Div", cut(both, -2, k, k + 1), cut(column, -2, k, k + 1))
        others = body.op("Sub", both, body.op("Mul", column, row))
        both = body.op("Where", body.op("Unsqueeze", here, last), row, others)
    return [both]


MICROSOFT: dict[str, Expansion] = {"Inverse": inverse}
