"""SVDF of int8 with a state of int16, in the integers of LiteRT's kernel: the same bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te, tirx

from kiln.frontend.tflite.fixed_point import ResultLevels, factor_of, rescaled
from kiln.frontend.tflite.operands import Grid, TfliteOperands, const

op = relax.op


def integer_svdf(node: TfliteOperands, rank: int) -> Any:
    """The result and the next state. The kernel has no activation: the range of the result stands for it."""
    filters, memory = node.shape(2)
    batch, units = node.shape(0)[0], filters // rank
    source, weights, times, state, result = (
        _grid(node, where) for where in (0, 1, 2, 4, None)
    )  # fmt: skip
    matrix = node.constant_array(1)
    columns = const(np.ascontiguousarray(matrix.T), "int8")
    products = node.bind(op.matmul(node.raw(0), columns, out_dtype="int32"))
    offset = -source.zero * matrix.astype("int64").sum(1)
    into_state = factor_of(_ratio(source, weights, state))
    features = node.bind(rescaled(node, products, offset, [into_state], ResultLevels(state.dtype)))
    now = node.bind(op.reshape(node.raw(4), [batch, filters, memory]))
    kept = [node.bind(op.strided_slice(now, [2], [1], [memory]))] if memory > 1 else []
    newest = node.bind(op.reshape(features, [batch, filters, 1]))
    after = node.bind(op.concat([*kept, newest], 2))
    sums = _sums(node, after, rank)
    bias = node.constant_array(3) if node.has(3) else np.zeros(units, "int64")
    factors = [factor_of(_ratio(state, times, result))]
    out = rescaled(node, sums, bias, factors, ResultLevels("int8", result.zero))
    return relax.Tuple([node.bind(out), node.bind(op.reshape(after, node.shape(4)))])


def _grid(node: TfliteOperands, index: int | None) -> Grid:
    """The grid of an input, or of the result. Raises ValueError if it has none."""
    grid = node.result_grid() if index is None else node.grid(index)
    if grid is None:
        where = "its result" if index is None else f"its input {index}"
        raise ValueError(f"{where} has no scale, and its state is quantised")
    return grid


def _ratio(one: Grid, other: Grid, result: Grid) -> float:
    return float(np.float32(one.scale) * np.float32(other.scale) / np.float32(result.scale))


def _sums(node: TfliteOperands, state: Any, rank: int) -> Any:
    """int32 [batch, units]: the filters' states times their weights of time, added up by unit."""
    weights = node.constant_array(2)

    def compute(x: Any, time_weights: Any) -> Any:
        batch, filters, memory = x.shape
        part, step = te.reduce_axis((0, rank), name="part"), te.reduce_axis((0, memory), name="step")

        def element(row: Any, unit: Any) -> Any:
            at = unit * rank + part
            product = tirx.Cast("int32", x(row, at, step)) * tirx.Cast("int32", time_weights(at, step))
            return te.sum(product, axis=[part, step])

        return te.compute((batch, filters // rank), element, name="sums")

    return node.emit_te(compute, state, const(weights, str(weights.dtype)), name="sums")
