"""Operators of the domain ai.onnx.ml that are arithmetic: preparation of data."""

from __future__ import annotations

import numpy as np

from kiln.extents import Extent
from kiln.frontend.onnx.body import Body, Expansion


def _floats(body: Body, name: str) -> str:
    """An attribute of floats as a constant; one number applies to every column."""
    values = np.array(body.required(name), "float32")
    columns = body.shape(body.input(0))[-1:]
    if values.size != 1 and (not columns or not body.symbols.equal(columns[0], values.size)):
        raise ValueError(
            f"its attribute '{name}' has {values.size} numbers, allowed: 1, or one for each column"
        )
    return body.const(values)


def scaler(body: Body) -> list[str]:
    """Scaler: (x - offset) * scale, in float32."""
    x = body.cast(body.input(0), "float32")
    return [body.op("Mul", body.op("Sub", x, _floats(body, "offset")), _floats(body, "scale"))]


def binarizer(body: Body) -> list[str]:
    """Binarizer: 1 above the threshold, else 0, in the type of the input."""
    x = body.input(0)
    above = body.op("Greater", x, body.like(x, float(body.attribute("threshold", 0.0))))
    return [body.cast(above, body.dtype(x))]


def normalizer(body: Body) -> list[str]:
    """Normalizer: each row divided by its maximum, the sum of its magnitudes, or its length, if not 0."""
    x = body.cast(body.input(0), "float32")
    if body.rank(x) != 2:
        raise ValueError(f"its input has {body.rank(x)} axes, allowed: 2")
    kind = body.only("norm", "MAX", "L1", "L2")
    axes = body.const(np.array([1], "int64"))
    reduction = {"MAX": "ReduceMax", "L1": "ReduceL1", "L2": "ReduceL2"}[kind]
    norm = body.op(reduction, x, axes, keepdims=1)
    is_zero = body.op("Equal", norm, body.like(x, 0.0))
    return [body.op("Div", x, body.op("Where", is_zero, body.like(x, 1.0), norm))]


def array_feature_extractor(body: Body) -> list[str]:
    """ArrayFeatureExtractor: columns of the last axis, by their numbers."""
    x, rank = body.input(0), body.rank(body.input(0))
    count: Extent = body.symbols.product(body.shape(body.input(1)))
    columns = body.reshape(body.input(1), [count])
    gathered = body.op("Gather", x, columns, axis=rank - 1)
    return [body.reshape(gathered, [1, count]) if rank == 1 else gathered]


CLASSICAL: dict[str, Expansion] = {
    "ArrayFeatureExtractor": array_feature_extractor,
    "Binarizer": binarizer,
    "Normalizer": normalizer,
    "Scaler": scaler,
}
