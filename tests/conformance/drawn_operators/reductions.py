"""Operators along axes: reductions, softmaxes, running sums, norms, the greatest elements."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from .draw import Draw, Input, Maker, Node

FLOATS = ("float32", "float32", "float64", "float16")
# The operator set from which axes are an input.
_AXES_INPUT = {"ReduceSum": 13}


def reduce(dtypes: Sequence[str], d: Draw) -> Node:
    shape, dtype = d.shape(0, 6, 1, 4), d.pick(dtypes)
    x = d.values(shape, dtype, 1.0)
    if d.operator in ("ReduceLogSum", "ReduceProd"):
        x = (np.abs(x) + (1 if np.dtype(dtype).kind != "f" else 0.25)).astype(dtype)
        if d.operator == "ReduceProd" and np.dtype(dtype).kind == "i":
            x = (x % 3 + 1).astype(dtype)
    attributes: dict[str, Any] = d.some(keepdims=d.number(0, 1))
    axes = d.axes(len(shape)) if shape or d.chance() else None
    if d.opset < _AXES_INPUT.get(d.operator, 18):
        if axes and d.chance(0.8):
            attributes["axes"] = axes
        return d.node(d.data(x), **attributes)
    attributes |= d.some(noop_with_empty_axes=d.number(0, 1))
    return d.node(d.data(x), d.size_input(axes) if axes is not None and d.chance(0.8) else None, **attributes)


def arg(d: Draw) -> Node:
    shape = d.shape(1, 5, 1, 5)
    x = d.values(shape, d.pick(("float32", "float64", "int32", "uint8", "int8")))
    x = np.round(x).astype(x.dtype)  # with ties
    last = d.number(0, 1) if d.opset >= 12 else None
    return d.node(
        d.data(x), **d.some(axis=d.axis(len(shape)), keepdims=d.number(0, 1), select_last_index=last)
    )


def softmax(d: Draw) -> Node:
    shape = d.shape(1, 5)
    axis = d.axis(len(shape)) if d.opset >= 11 else d.number(0, len(shape) - 1)
    return d.node(d.data(d.values(shape, d.pick(FLOATS[:3]))), **d.some(axis=axis))


def cumulative(d: Draw) -> Node:
    shape = d.shape(1, 5)
    x = d.values(shape, d.pick(("float32", "float64", "int32", "int64")), 1.0)
    axis = np.asarray(d.axis(len(shape)), d.pick(("int32", "int64")))
    if d.chance(0.2):
        axis = axis.reshape(1)
    return d.node(
        d.data(x),
        d.size_input(axis, axis.dtype.name),
        **d.some(exclusive=d.number(0, 1), reverse=d.number(0, 1)),
    )


def lp_normalization(d: Draw) -> Node:
    shape = d.shape(1, 5)
    return d.node(d.data(d.values(shape)), **d.some(axis=d.axis(len(shape)), p=d.number(1, 2)))


def mean_variance(d: Draw) -> Node:
    rank = d.number(2, 5)
    shape = tuple(d.size(2, 5) for _ in range(rank))
    axes = sorted(axis % rank for axis in d.axes(rank, 1))
    if np.prod([shape[axis] for axis in axes]) == 1:
        raise ValueError("the variance of one number, which is the rounding of its square")
    return d.node(d.data(d.values(shape)), **(d.some(axes=axes) if rank == 4 else {"axes": axes}))


def top_k(d: Draw) -> Node:
    shape = d.shape(1, 4, 2, 7)
    axis = d.axis(len(shape))
    dtype = d.pick(("float32", "float64", "int64", "int32")) if d.opset >= 11 else "float32"
    x = d.values(shape, dtype)
    if d.chance(0.3):
        x = np.round(x / 2).astype(dtype)  # ties: the lower index first
    k = d.number(1, 2)
    attributes = d.some(axis=axis)
    if d.opset >= 11:
        attributes |= d.some(largest=d.number(0, 1))
    if d.opset < 10:
        return d.node(d.data(x), k=k, outputs=2, **attributes)
    return d.node(d.data(x), d.size_input([k]), outputs=2, **attributes)


def hardmax(d: Draw) -> Node:
    shape = d.shape(1, 4)
    axis = d.axis(len(shape)) if d.opset >= 11 else d.number(0, len(shape) - 1)
    return d.node(d.data(np.round(d.values(shape))), **d.some(axis=axis))


def layer_normalization(d: Draw) -> Node:
    shape = d.shape(1, 5)
    axis = d.axis(len(shape))
    inner = shape[axis % len(shape) :]
    dtype = d.pick(("float32", "float32", "float16", "float64"))
    bias = d.either(d.values(inner, dtype), data=0.3) if d.chance() else None
    scale = d.either(d.values(inner, dtype), data=0.3)
    return d.node(
        d.data(d.values(shape, dtype)), scale, bias, outputs=d.pick((1, 1, 2, 3)), axis=axis,
        **d.some(epsilon=d.real(1e-5, 0.1)),
    )  # fmt: skip


def rms_normalization(d: Draw) -> Node:
    shape = d.shape(1, 5)
    axis = d.axis(len(shape))
    scale = d.either(d.values(shape[axis % len(shape) :]), data=0.3)
    return d.node(d.data(d.values(shape)), scale, axis=axis, **d.some(epsilon=d.real(1e-5, 0.1)))


def channels(d: Draw) -> tuple[tuple[int, ...], int]:
    """A shape (batch, channels, ...) and its number of channels."""
    count = d.number(1, 6)
    return (d.size(1, 3), count, *(d.size(1, 5) for _ in range(d.number(0, 3)))), count


def vector(d: Draw, count: int, dtype: str = "float32", positive: bool = False) -> Input:
    value = d.values((count,), dtype, 1.0)
    return d.either(np.abs(value) + np.asarray(0.25, dtype) if positive else value, data=0.3)


def batch_normalization(d: Draw) -> Node:
    shape, count = channels(d)
    parts = [vector(d, count, positive=number == 3) for number in range(4)]
    attributes = d.some(epsilon=d.real(1e-5, 0.1), momentum=d.real(0.1, 0.9))
    if d.opset < 9:
        attributes |= d.some(spatial=1)
    if d.opset >= 14 and d.chance(0.3):
        return d.node(d.data(d.values(shape)), *parts, outputs=3, training_mode=1, **attributes)
    return d.node(d.data(d.values(shape)), *parts, **attributes)


def instance_normalization(d: Draw) -> Node:
    shape, count = channels(d)
    shape = (*shape, d.size(1, 4)) if len(shape) < 3 else shape
    x = d.data(d.values(shape))
    return d.node(x, vector(d, count), vector(d, count), **d.some(epsilon=d.real(1e-5, 0.1)))


def group_normalization(d: Draw) -> Node:
    groups = d.number(1, 3)
    count = groups * d.number(1, 3)
    shape = (d.size(1, 3), count, *(d.size(1, 5) for _ in range(d.number(1, 3))))
    size = count if d.opset >= 21 else groups
    return d.node(
        d.data(d.values(shape)), vector(d, size), vector(d, size), num_groups=groups,
        **d.some(epsilon=d.real(1e-5, 0.1)),
    )  # fmt: skip


def local_response(d: Draw) -> Node:
    shape, _ = channels(d)
    shape = (*shape, d.size(1, 4)) if len(shape) < 3 else shape
    return d.node(
        d.data(d.values(shape)), size=d.pick((1, 2, 3, 4, 5, 7)),
        **d.some(alpha=d.real(0.01, 0.5), beta=d.real(0.2, 1.5), bias=d.real(0.5, 2)),
    )  # fmt: skip


_SUMS = ("float32", "float32", "float64", "int32", "int64", "float16")
MAKERS: dict[str, Maker] = {
    **{f"Reduce{name}": partial(reduce, _SUMS) for name in ("Sum", "Prod", "L1", "SumSquare", "Mean")},
    **{f"Reduce{name}": partial(reduce, FLOATS[:3]) for name in ("L2", "LogSum", "LogSumExp")},
    **{f"Reduce{name}": partial(reduce, (*_SUMS, "int8", "uint8")) for name in ("Max", "Min")},
    "ArgMax": arg, "ArgMin": arg, "Softmax": softmax, "LogSoftmax": softmax, "Hardmax": hardmax,
    "CumSum": cumulative, "LpNormalization": lp_normalization,
    "MeanVarianceNormalization": mean_variance, "TopK": top_k, "LayerNormalization": layer_normalization,
    "RMSNormalization": rms_normalization, "BatchNormalization": batch_normalization,
    "InstanceNormalization": instance_normalization, "GroupNormalization": group_normalization,
    "LRN": local_response,
}  # fmt: skip
