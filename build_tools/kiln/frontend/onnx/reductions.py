"""Converters of ONNX's reductions, of every element type and opset.

TVM 0.27 adds 16-bit floats in 16 bits, refuses bool, and leaves out the square or the logarithm where no
axis is reduced. Converters have the interface of kiln.frontend.onnx.ops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax

from kiln.extents import shape_of
from kiln.frontend.onnx.node import Node, as_tensor, prims, shape_expr
from kiln.frontend.onnx.run_axes import RunAxes
from kiln.frontend.onnx.value import Value, from_items

op = relax.op
Axes = Sequence[int] | RunAxes
Emit = Callable[[Any], Any]  # binds an expression to a variable
# (emit, tensor, axes, keepdims) → the reduced tensor
Compute = Callable[[Emit, Any, Axes, bool], Any]

_COMPUTED_AS = {"float16": "float32", "bfloat16": "float32", "bool": "uint8"}  # computed in a wider type
_INTEGERS = ("int", "uint")


def _axes(node: Node) -> Axes:
    """The axes to reduce, sorted, or the axes that only the run knows."""
    axes = node.elements(1, "axes")
    rank = len(node.shape(0))
    if axes is None and node.has(1):
        count = node.shape(1)
        if not count or not isinstance(count[0], int) or count[0] != 0:
            return RunAxes(node, 1, rank)
    noop = node.attributes.get("noop_with_empty_axes", 0)
    if not axes:
        return [] if noop else list(range(rank))
    return sorted({int(axis) % rank for axis in axes})


def _converter(compute: Compute, real: bool = False) -> Callable[[Node], Any]:
    """The converter of a reduction; `real`: intermediate results of integers are not integers."""

    def converter(node: Node) -> Any:
        emit, x = node.builder.emit, node.tensor(0)
        dtype = str(x.ty.dtype)
        wide = "float32" if real and dtype.startswith(_INTEGERS) else _COMPUTED_AS.get(dtype, dtype)
        axes, keep = _axes(node), bool(node.attributes.get("keepdims", 1))
        result = compute(emit, x if wide == dtype else emit(op.astype(x, wide)), axes, keep)
        return result if wide == dtype else op.astype(emit(result), dtype)

    return converter


def _reduction(function: Callable[..., Any]) -> Compute:
    """A reduction of Relax; without axes, the tensor itself."""

    def compute(emit: Emit, x: Any, axes: Axes, keep: bool) -> Any:
        if isinstance(axes, RunAxes):
            return axes.reduced(function.__name__, x, keep)
        return function(x, list(axes), keep) if axes else x

    return compute


def _extreme(function: Callable[..., Any], greatest: bool) -> Compute:
    """A maximum or minimum; of no elements, the least or the greatest number of the type."""

    def compute(emit: Emit, x: Any, axes: Axes, keep: bool) -> Any:
        if isinstance(axes, RunAxes):
            return axes.reduced(function.__name__, x, keep)
        shape, dtype = shape_of(x), np.dtype(str(x.ty.dtype))
        if all(shape[axis] != 0 for axis in axes if isinstance(shape[axis], int)):
            return _reduction(function)(emit, x, axes, keep)
        shape_of_result = [
            1 if axis_number in axes else size
            for axis_number, size in enumerate(shape)
            if keep or axis_number not in axes
        ]
        limits = np.iinfo(dtype) if dtype.kind in "iu" else None
        ends = (-np.inf, np.inf) if limits is None else (limits.min, limits.max)
        return op.full(shape_expr(shape_of_result), relax.const(ends[greatest], str(dtype)), str(dtype))

    return compute


_sum, _max, _min = _reduction(op.sum), _extreme(op.max, False), _extreme(op.min, True)


def _mean(emit: Emit, x: Any, axes: Axes, keep: bool) -> Any:
    """The mean; of integers, rounded towards zero."""
    dtype = str(x.ty.dtype)
    if isinstance(axes, RunAxes):
        return _run_mean(emit, x, axes, keep)
    if not axes or not dtype.startswith(_INTEGERS):
        return _reduction(op.mean)(emit, x, axes, keep)
    count: Any = 1
    for axis in axes:
        count = count * shape_of(x)[axis]
    total = emit(op.sum(op.astype(x, "int64"), list(axes), keep))
    number = as_tensor(Value(from_items([count]).items.reshape(()), "int64"))
    return op.astype(emit(op.divide(total, number)), dtype)


def _run_mean(emit: Emit, x: Any, axes: RunAxes, keep: bool) -> Any:
    """The mean along axes of the run: the sum divided by the number of elements."""
    dtype = str(x.ty.dtype)
    is_integer = dtype.startswith(_INTEGERS)
    wide = emit(op.astype(x, "int64")) if is_integer else x
    total = emit(_sum(emit, wide, axes, keep))
    divisor = emit(axes.elements())
    mean = emit(op.divide(total, divisor if is_integer else emit(op.astype(divisor, dtype))))
    return op.astype(mean, dtype) if is_integer else mean


def _run_log_sum_exp(emit: Emit, x: Any, axes: RunAxes, keep: bool) -> Any:
    """The logarithm of a sum of powers of e along axes of the run, as `_log_sum_exp`."""
    zero = relax.const(0.0, str(x.ty.dtype))

    def most(keeps: bool) -> Any:
        greatest = emit(axes.reduced("max", x, keeps))
        return emit(op.where(op.isfinite(greatest), greatest, zero))

    powers = emit(op.exp(emit(op.subtract(x, axes.spread(most(True))))))
    return op.add(most(keep), emit(op.log(emit(axes.reduced("sum", powers, keep)))))


def _sum_of(step: Callable[[Any], Any]) -> Compute:
    """The sum of step(x) over the axes."""
    return lambda emit, x, axes, keep: _sum(emit, emit(step(x)), axes, keep)


def _root(emit: Emit, x: Any, axes: Axes, keep: bool) -> Any:
    return op.sqrt(emit(_sum_of(lambda x: op.multiply(x, x))(emit, x, axes, keep)))


def _log_sum(emit: Emit, x: Any, axes: Axes, keep: bool) -> Any:
    return op.log(emit(_sum(emit, x, axes, keep)))


def _log_sum_exp(emit: Emit, x: Any, axes: Axes, keep: bool) -> Any:
    """m + log(sum(e^(x - m))), with m the greatest element, or 0 where that is infinite."""
    if isinstance(axes, RunAxes):
        return _run_log_sum_exp(emit, x, axes, keep)
    if not axes:
        return x
    zero = relax.const(0.0, str(x.ty.dtype))
    most = emit(_max(emit, x, axes, True))
    most = emit(op.where(op.isfinite(most), most, zero))
    total = emit(op.sum(emit(op.exp(emit(op.subtract(x, most)))), list(axes), True))
    result = emit(op.add(most, op.log(total)))
    return result if keep else op.squeeze(result, list(axes))


def arg_extreme(node: Node) -> Any:
    """ArgMax and ArgMin: makes a negative axis positive, which TVM 0.27 does from opset 11 on alone."""
    if "axis" in node.attributes:
        node.attributes["axis"] = int(node.attributes["axis"]) % max(len(node.shape(0)), 1)


def hardmax(node: Node) -> Any:
    """Hardmax: 1 at the first greatest element of an axis, 0 elsewhere, also along dynamic sizes.

    Before operator set 13, at the greatest element of all axes from `axis` on.
    """
    emit, x, shape = node.builder.emit, node.tensor(0), node.shape(0)
    old, dtype, rank = node.opset < 13, str(node.tensor(0).ty.dtype), len(node.shape(0))
    axis = int(node.attributes.get("axis", 1 if old else -1)) % rank
    product: Any = 1
    if old:
        product = node.symbols.product(shape[axis:])
        x = emit(op.reshape(x, shape_expr([*shape[:axis], product])))
    size = product if old else shape[axis]
    broadcast_shape = [1] * (axis + 1 if old else rank)
    broadcast_shape[axis] = size
    best = emit(op.argmax(x, axis, True))
    indices = emit(op.reshape(emit(op.arange(*prims([0, size, 1]), "int64")), shape_expr(broadcast_shape)))
    flags = emit(op.astype(emit(op.equal(indices, best)), dtype))
    return op.reshape(flags, shape_expr(shape)) if old else flags


CONVERTERS: dict[str, Callable[[Node], Any]] = {
    "ArgMax": arg_extreme,
    "ArgMin": arg_extreme,
    "Hardmax": hardmax,
    "ReduceL1": _converter(_sum_of(op.abs)),
    "ReduceL2": _converter(_root, real=True),
    "ReduceLogSum": _converter(_log_sum, real=True),
    "ReduceLogSumExp": _converter(_log_sum_exp, real=True),
    "ReduceMax": _converter(_max),
    "ReduceMean": _converter(_mean),
    "ReduceMin": _converter(_min),
    "ReduceProd": _converter(_reduction(op.prod)),
    "ReduceSum": _converter(_sum),
    "ReduceSumSquare": _converter(_sum_of(lambda x: op.multiply(x, x))),
}
