"""Operators whose results have sizes of their own: chosen elements, and tensors from a few numbers."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from .draw import Draw, Maker, Node


def eye_like(d: Draw) -> Node:
    return d.node(
        d.data(d.values((d.size(), d.size()))), **d.some(dtype=d.pick((1, 7, 6, 11)), k=d.number(-3, 3))
    )


def one_hot(d: Draw) -> Node:
    shape, depth = d.shape(0, 3), d.number(2, 6)
    indices = d.indices(
        shape, -depth - 1 if d.opset >= 11 else 0, depth, d.pick(("int64", "int32", "float32"))
    )
    values = np.asarray([d.number(-3, 0), d.number(1, 4)], d.pick(("float32", "int64", "int32")))
    axis = d.pick((-1, d.number(0, len(shape))))
    count = np.asarray(depth, d.pick(("int64", "int32", "float32")))
    return d.node(
        d.data(indices), d.size_input(count if d.chance() else count.reshape(1), count.dtype.name),
        d.either(values, data=0.2), **d.some(axis=axis),
    )  # fmt: skip


def compress(d: Draw) -> Node:
    shape = d.shape(1, 4)
    axis = d.axis(len(shape)) if d.opset >= 11 else d.number(0, len(shape) - 1)
    flat = d.chance(0.3)
    size = int(np.prod(shape)) if flat else shape[axis]
    condition = d.values((max(1, size - d.number(0, 1)),), "bool")
    return d.node(d.data(d.values(shape)), d.either(condition), axis=None if flat else axis)


def non_zero(d: Draw) -> Node:
    x = np.round(d.values(d.shape(1, 4), d.pick(("float32", "int64", "int32")), 1.0))
    return d.node(d.data(x * (np.abs(x) < 40)))


def unique(d: Draw) -> Node:
    shape = d.shape(1, 3, 1, 4)
    axis = None if d.chance() else d.axis(len(shape))
    x = (
        np.round(d.values(shape, "float32", 1.0))
        if axis is None
        else d.indices(shape, 0, 1).astype("float32")
    )
    return d.node(d.data(x), axis=axis, outputs=d.number(1, 4), **d.some(sorted=d.number(0, 1)))


def constant_of_shape(d: Draw) -> Node:
    value = helper.make_tensor("v", TensorProto.INT32, [1], [d.number(1, 9)])
    shape = np.asarray([d.number(1, 4) for _ in range(d.number(1, 4))])
    return d.node(d.data(shape), **d.some(value=value))


def range_(d: Draw) -> Node:
    dtype = d.pick(("int64", "int32", "float32"))
    delta = d.pick((1, 2, -1, -2))
    start = d.number(-3, 3)
    limit = start + delta * d.number(1, 9)
    return d.node(*(d.data(np.asarray(value, dtype)) for value in (start, limit, delta)))


MAKERS: dict[str, Maker] = {
    "EyeLike": eye_like,
    "OneHot": one_hot,
    "Compress": compress,
    "NonZero": non_zero,
    "Unique": unique,
    "ConstantOfShape": constant_of_shape,
    "Range": range_,
}
