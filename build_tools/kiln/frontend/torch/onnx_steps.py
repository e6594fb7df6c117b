"""Short forms of ONNX operators, for functions that PyTorch's exporter traces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

_FLOAT64 = 11  # of ONNX's element types


def ints(*values: int) -> Any:
    """A constant of one axis, int64."""
    from onnxscript import opset18 as op

    return op.Constant(value_ints=list(values))


def like(value: float, tensor: Any) -> Any:
    """The scalar constant `value`, of the type of `tensor`."""
    import numpy as np
    import onnx_ir
    from onnxscript import opset18 as op

    if tensor.dtype == _FLOAT64:  # attributes of ONNX are float32
        return op.Constant(value=onnx_ir.tensor(np.array(value, np.float64)))
    return op.CastLike(op.Constant(value_float=float(value)), tensor)


def cut(x: Any, axis: int, begin: int, end: int) -> Any:
    """The elements from `begin` to before `end` along an axis."""
    from onnxscript import opset18 as op

    return op.Slice(x, ints(begin), ints(end), ints(axis))


def places_along(axis: int, index: Any, values: Any, rank: int) -> Any:
    """The indices with which ScatterElements writes `values` at the places `index` [n] of `axis`.

    `values` has `rank` axes, 1 or more, and n elements along `axis`.
    """
    from onnxscript import opset18 as op

    others = [other for other in range(rank) if other != axis % rank]
    wide = op.Unsqueeze(index, ints(*others)) if others else index
    return op.Expand(wide, op.Shape(values))


def moved_last(x: Any, axis: int, rank: int) -> tuple[Any, Callable[[Any], Any]]:
    """x [of `rank` axes] with `axis` as the last one, and the function that moves it back."""
    from onnxscript import opset18 as op

    axis %= rank
    if axis == rank - 1:
        return x, lambda made: made
    order = [index for index in range(rank) if index != axis] + [axis]
    return op.Transpose(x, perm=order), lambda made: op.Transpose(made, perm=inverse(order))


def inverse(order: Sequence[int]) -> list[int]:
    """The permutation that undoes `order`."""
    return [list(order).index(place) for place in range(len(order))]
