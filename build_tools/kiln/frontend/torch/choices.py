"""Operators that choose elements, which PyTorch's exporter to ONNX lacks.

adaptive_max_pool, index_reduce, nonzero_static, pdist and unique_consecutive. Each function is traced by the
exporter.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kiln.frontend.torch.composed_moves import adaptive_parts
from kiln.frontend.torch.onnx_steps import cut, ints, like, places_along
from kiln.frontend.torch.present import aten as own_operators
from kiln.frontend.torch.translations import scatter_reduce
from kiln.frontend.torch.unconverted import cdist

_INT64, _BOOL = 7, 9  # of ONNX's element types


def choices() -> Mapping[Any, Callable[..., Any]]:
    """The operators of this module, for torch.onnx.export's `custom_translation_table`."""

    aten = own_operators()
    return {
        aten.adaptive_max_pool2d.default: adaptive_max_pool,
        aten.adaptive_max_pool3d.default: adaptive_max_pool,
        aten.index_reduce.default: index_reduce,
        aten.nonzero_static.default: nonzero_static,
        aten._pdist_forward.default: pdist,
        aten.unique_consecutive.default: unique_consecutive,
    }


def adaptive_max_pool(self: Any, output_size: Sequence[int]) -> tuple[Any, Any]:
    """aten::adaptive_max_pool: the greatest of each part of the last axes, and its place.

    Part i of m of an axis of n elements goes from floor(i n / m) to ceil((i + 1) n / m).
    """
    import numpy as np
    import onnx_ir
    from onnxscript import opset18 as op

    count = len(output_size)
    sizes = list(self.shape)[-count:]
    if not all(isinstance(size, int) for size in sizes):
        return _greatest_of_parts(self, output_size)
    tables = [_parts(size, parts) for size, parts in zip(sizes, output_size, strict=True)]
    windows = self
    for axis, table in enumerate(tables):
        place = op.Constant(value=onnx_ir.tensor(np.array(table, dtype=np.int64).reshape(-1)))
        windows = op.Gather(windows, place, axis=axis - count)
    split = [number for table in tables for number in (len(table), len(table[0]))]
    lead = op.Shape(self, end=len(self.shape) - count)
    windows = op.Reshape(windows, op.Concat(lead, ints(*split), axis=0))
    first = len(self.shape) - count
    order = [*range(first), *range(first, first + 2 * count, 2), *range(first + 1, first + 2 * count, 2)]
    windows = op.Reshape(op.Transpose(windows, perm=order), op.Concat(lead, ints(*output_size, -1), axis=0))
    values = op.ReduceMax(windows, ints(-1), keepdims=0)
    flat = np.array([_flat(sizes, which) for which in itertools.product(*tables)], dtype=np.int64)
    flat = flat.reshape(*output_size, -1)
    best = op.ArgMax(windows, axis=-1, keepdims=1)
    known = op.Expand(op.Constant(value=onnx_ir.tensor(flat)), op.Shape(windows))
    return values, op.Squeeze(op.GatherElements(known, best, axis=-1), ints(-1))


def _greatest_of_parts(x: Any, output_size: Sequence[int]) -> tuple[Any, Any]:
    """`adaptive_max_pool` of axes of dynamic sizes, one after the other from the last one on."""
    from onnxscript import opset18 as op

    places: Any = None  # of the elements of x, in the flat axes
    stride = ints(1)
    for axis, parts in zip(range(-1, -1 - len(output_size), -1), reversed(output_size), strict=True):
        size = op.Shape(x, start=axis, end=axis + 1 or None)
        values, of_values = [], []
        for part in range(parts):
            begin = op.Div(op.Mul(size, ints(part)), ints(parts))
            end = op.Div(op.Add(op.Mul(size, ints(part + 1)), ints(parts - 1)), ints(parts))
            window = op.Slice(x, begin, end, ints(axis))
            best = op.ArgMax(window, axis=axis, keepdims=1)
            place = op.Mul(op.Add(best, begin), stride)
            if places is not None:
                inner = op.Slice(places, begin, end, ints(axis))
                place = op.Add(place, op.GatherElements(inner, best, axis=axis))
            values.append(op.ReduceMax(window, ints(axis), keepdims=1))
            of_values.append(place)
        x, places = op.Concat(*values, axis=axis), op.Concat(*of_values, axis=axis)
        stride = op.Mul(stride, size)
    return x, places


def _parts(size: int, parts: int) -> list[list[int]]:
    """The elements of each part of an axis; shorter parts repeat their last one."""
    ends = adaptive_parts(size, parts)
    width = max(end - begin for begin, end in ends)
    return [[min(begin + place, end - 1) for place in range(width)] for begin, end in ends]


def _flat(sizes: Sequence[int], which: Sequence[Sequence[int]]) -> list[int]:
    """The places in the flat axes of the elements of one part, given by its elements along each axis."""
    strides = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    return [
        sum(place * stride for place, stride in zip(places, strides, strict=True))
        for places in itertools.product(*which)
    ]


def index_reduce(self: Any, dim: int, index: Any, source: Any, reduce: str, include_self: bool = True) -> Any:
    """aten::index_reduce: `source` is reduced into the places `index` [n] of an axis of `self`."""
    places = places_along(dim, index, source, len(self.shape))
    return scatter_reduce(self, dim, places, source, reduce, include_self)


def nonzero_static(self: Any, size: int, fill_value: int = -1) -> Any:
    """aten::nonzero_static: the places [size, rank] of elements that are not 0, then `fill_value`."""
    from onnxscript import opset18 as op

    rank = len(self.shape)
    if rank == 0:
        raise ValueError("nonzero_static of a number; give it an axis")
    chosen = op.Reshape(op.Cast(op.Cast(self, to=9), to=_INT64), ints(-1))
    chosen = op.Concat(chosen, op.Expand(ints(0), ints(size)), axis=0)
    places = op.Sub(op.CumSum(op.Expand(ints(1), op.Shape(chosen)), ints(0)), ints(1))
    left = op.Sub(op.Shape(chosen), places)  # greatest for the first one
    ranked, flat = op.TopK(op.Mul(chosen, left), ints(size), axis=0)
    axes = []
    sizes = op.Shape(self)
    for axis in range(rank):
        later = op.ReduceProd(op.Slice(sizes, ints(axis + 1), ints(rank)), keepdims=1)
        axes.append(op.Mod(op.Div(flat, later), op.Slice(sizes, ints(axis), ints(axis + 1))))
    positions = op.Concat(*[op.Unsqueeze(one, ints(1)) for one in axes], axis=1)
    return op.Where(op.Unsqueeze(op.Greater(ranked, ints(0)), ints(1)), positions, ints(fill_value))


def pdist(self: Any, p: float = 2.0) -> Any:
    """aten::_pdist_forward: the distances of all pairs of rows of [n, m], in order.

    Raises ValueError for a dynamic n.
    """
    from onnxscript import opset18 as op

    rows = self.shape[0]
    if not isinstance(rows, int):
        raise ValueError("pdist of a dynamic number of rows; fix it, or take torch.cdist")
    pairs = [a * rows + b for a in range(rows) for b in range(a + 1, rows)]
    if not pairs:
        return op.Expand(like(0, self), ints(0))
    return op.Gather(op.Reshape(cdist(self, self, p), ints(-1)), ints(*pairs), axis=0)


def unique_consecutive(
    self: Any, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[Any, Any, Any]:
    """aten::unique_consecutive: the first of equal neighbours, of all elements or of the slices of an axis.

    The other results are, for each element or slice, which one of them it equals, and how many equal each.
    """
    from onnxscript import opset18 as op

    rank = 1 if dim is None else len(self.shape)
    axis = 0 if dim is None else dim % rank
    x = op.Reshape(self, ints(-1)) if dim is None else self
    count = op.Shape(x, start=axis, end=axis + 1)
    differs = op.Cast(op.Not(op.Equal(cut(x, axis, 1, 2**62), cut(x, axis, 0, -1))), to=_INT64)
    others = [other for other in range(rank) if other != axis]
    differs = op.ReduceMax(differs, ints(*others), keepdims=0) if others else differs
    begins = op.Slice(op.Concat(ints(1), differs, axis=0), ints(0), count, ints(0))  # of no element, none
    is_first = op.Cast(begins, to=_BOOL)
    inverse = op.Sub(op.CumSum(begins, ints(0)), ints(1))
    places = op.Sub(op.CumSum(op.Expand(ints(1), count), ints(0)), ints(1))
    ends = op.Concat(op.Compress(places, is_first, axis=0), count, axis=0)
    counts = op.Sub(cut(ends, 0, 1, 2**62), cut(ends, 0, 0, -1))
    inverse = op.Reshape(inverse, op.Shape(self)) if dim is None else inverse
    return op.Compress(x, is_first, axis=axis), inverse, counts
