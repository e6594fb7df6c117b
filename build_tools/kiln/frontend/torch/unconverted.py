"""Operators of PyTorch that its ONNX exporter does not convert: distances, searches, attention of any rank.

Each function is traced by the exporter, and computes by operators of ONNX what torch.cdist, torch.bucketize,
torch.searchsorted, torch.amax and torch.amin without axes, torch.max and torch.min along an axis (of truth
values), torch.sort with `stable`, and scaled_dot_product_attention (of other than four axes) compute, for
numbers that are no NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kiln.frontend.torch.onnx_steps import ints, like
from kiln.frontend.torch.present import aten as own_operators

_BOOL, _INT32, _INT64 = 9, 6, 7  # of ONNX's element types


def unconverted() -> Mapping[Any, Callable[..., Any]]:
    """The operators of this module, for torch.onnx.export's `custom_translation_table`."""

    aten = own_operators()
    return {
        aten.cdist.default: cdist,
        aten._cdist_forward.default: cdist,
        aten._euclidean_dist.default: cdist,
        aten.searchsorted.Tensor: searchsorted,
        aten.bucketize.Tensor: bucketize,
        aten.masked_select.default: masked_select,
        aten.repeat_interleave.Tensor: repeat_interleave,
        aten.repeat_interleave.self_int: repeat_each,
        aten.amax.default: amax,
        aten.amin.default: amin,
        aten.max.dim: max_dim,
        aten.min.dim: min_dim,
        aten.sort.stable: sort_stable,
        aten.scaled_dot_product_attention.default: attention,
    }


def cdist(x1: Any, x2: Any, p: float = 2.0, compute_mode: int | None = None) -> Any:
    """aten::cdist: the distances [..., a, b] in norm `p` between x1 [..., a, n] and x2 [..., b, n].

    Differences are taken as they are, whatever `compute_mode` says: products would cancel.
    """
    from onnxscript import opset18 as op

    last = op.Constant(value_ints=[-1])
    away = op.Abs(
        op.Sub(op.Unsqueeze(x1, op.Constant(value_ints=[-2])), op.Unsqueeze(x2, op.Constant(value_ints=[-3])))
    )
    if p == math.inf:
        return op.ReduceMax(away, last, keepdims=0)
    if p == 0:
        zero = op.CastLike(op.Constant(value_float=0.0), x1)
        return op.ReduceSum(op.CastLike(op.Greater(away, zero), x1), last, keepdims=0)
    if p == 1:
        return op.ReduceSum(away, last, keepdims=0)
    if p == 2:
        return op.Sqrt(op.ReduceSum(op.Mul(away, away), last, keepdims=0))
    power, root = (like(number, x1) for number in (p, 1 / p))
    return op.Pow(op.ReduceSum(op.Pow(away, power), last, keepdims=0), root)


def searchsorted(
    sorted_sequence: Any,
    self: Any,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Any:
    """aten::searchsorted.Tensor: how many of a sequence [..., n] are before each number of `self` [..., m].

    Equal numbers are before it where `right` is true or `side` is "right". `sorter` [..., n]: the order of a
    sequence that is not sorted, which does not change the count. The sequence may have one axis alone.
    """
    from onnxscript import opset18 as op

    last, before = op.Constant(value_ints=[-1]), op.Constant(value_ints=[-2])
    numbers = op.Unsqueeze(self, last)
    sequence = op.Unsqueeze(sorted_sequence, before) if len(self.shape) else sorted_sequence
    if self.dtype != sorted_sequence.dtype:
        sequence = op.CastLike(sequence, numbers)
    counts = op.LessOrEqual if right or side == "right" else op.Less
    indices = op.ReduceSum(op.Cast(counts(sequence, numbers), to=_INT64), last, keepdims=0)
    return op.Cast(indices, to=_INT32) if out_int32 else indices


def bucketize(self: Any, boundaries: Any, out_int32: bool = False, right: bool = False) -> Any:
    """aten::bucketize.Tensor: `searchsorted` in one sequence of boundaries, for numbers of any shape."""
    return searchsorted(boundaries, self, out_int32, right)


def masked_select(self: Any, mask: Any) -> Any:
    """aten::masked_select: the elements of `self` where `mask` is true, both broadcast to each other."""
    from onnxscript import opset18 as op

    wide, chosen = op.Expand(self, op.Shape(mask)), op.Expand(mask, op.Shape(self))
    return op.Compress(op.Reshape(wide, ints(-1)), op.Reshape(chosen, ints(-1)))


def repeat_each(self: Any, repeats: Any, dim: int | None = None, output_size: Any = None) -> Any:
    """aten::repeat_interleave.self_int; the exporter takes another axis for a dynamic `repeats`."""
    from onnxscript import opset18 as op
    from onnxscript.function_libs.torch_lib.ops.core import aten_repeat_interleave_self_int

    if isinstance(repeats, int):
        return aten_repeat_interleave_self_int(self, repeats, dim)
    x = op.Reshape(self, op.Constant(value_ints=[-1])) if dim is None else self
    rank = 1 if dim is None else len(self.shape)
    axis = (dim or 0) % rank
    ones = [1] * (axis + 1), [1] * (rank - axis - 1)
    number = op.Reshape(repeats, op.Constant(value_ints=[1]))
    parts = [op.Constant(value_ints=ones[0]), number, *([op.Constant(value_ints=ones[1])] if ones[1] else [])]
    repeated = op.Expand(op.Unsqueeze(x, op.Constant(value_ints=[axis + 1])), op.Concat(*parts, axis=0))
    size = op.Mul(op.Shape(x, start=axis, end=axis + 1), number)
    shape = [op.Shape(x, start=0, end=axis)] if axis else []
    shape += [size, *([op.Shape(x, start=axis + 1)] if axis + 1 < rank else [])]
    return op.Reshape(repeated, op.Concat(*shape, axis=0))


def repeat_interleave(repeats: Any, output_size: int | None = None) -> Any:
    """aten::repeat_interleave.Tensor: 0, 1, … [output_size], each number as often as `repeats` [n] says."""
    from onnxscript import opset18 as op
    from onnxscript.function_libs.torch_lib.ops.core import aten_repeat_interleave_Tensor

    if output_size is None:
        return aten_repeat_interleave_Tensor(repeats)
    ends = op.CumSum(op.Cast(repeats, to=_INT64), op.Constant(value_int=0))
    places = op.Range(op.Constant(value_int=0), op.Cast(output_size, to=_INT64), op.Constant(value_int=1))
    passed = op.LessOrEqual(ends, op.Unsqueeze(places, ints(-1)))
    return op.ReduceSum(op.Cast(passed, to=_INT64), ints(-1), keepdims=0)


def amax(self: Any, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
    """aten::amax: the greatest along axes, or of all elements without axes, also of truth values."""
    return _extreme("ReduceMax", self, dim, keepdim)


def amin(self: Any, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
    """aten::amin: the least along axes, or of all elements without axes, also of truth values."""
    return _extreme("ReduceMin", self, dim, keepdim)


def _extreme(name: str, x: Any, axes: Sequence[int], keep: bool) -> Any:
    from onnxscript import opset18 as op

    if len(x.shape) == 0:
        return op.Identity(x)
    numbers = op.Cast(x, to=_INT32) if int(x.dtype) == _BOOL else x
    reduced = getattr(op, name)(numbers, *([ints(*axes)] if axes else []), keepdims=int(keep))
    return op.Cast(reduced, to=_BOOL) if int(x.dtype) == _BOOL else reduced


def max_dim(self: Any, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
    """aten::max.dim: the greatest along an axis, and where it is first; ONNX has none of truth values."""
    from onnxscript import opset18 as op
    from onnxscript.function_libs.torch_lib.ops.core import aten_max_dim

    if int(self.dtype) != _BOOL or len(self.shape) == 0:
        return aten_max_dim(self, dim, keepdim)  # type: ignore[no-any-return]
    numbers, axes = op.Cast(self, to=_INT32), op.Constant(value_ints=[dim])
    values = op.ReduceMax(numbers, axes, keepdims=int(keepdim))
    return op.Cast(values, to=_BOOL), op.ArgMax(numbers, axis=dim, keepdims=int(keepdim))


def min_dim(self: Any, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
    """aten::min.dim: the least along an axis, and where it is first; ONNX has none of truth values."""
    from onnxscript import opset18 as op
    from onnxscript.function_libs.torch_lib.ops.core import aten_min_dim

    if int(self.dtype) != _BOOL or len(self.shape) == 0:
        return aten_min_dim(self, dim, keepdim)  # type: ignore[no-any-return]
    numbers, axes = op.Cast(self, to=_INT32), op.Constant(value_ints=[dim])
    values = op.ReduceMin(numbers, axes, keepdims=int(keepdim))
    return op.Cast(values, to=_BOOL), op.ArgMin(numbers, axis=dim, keepdims=int(keepdim))


def sort_stable(
    self: Any, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Any, Any]:
    """aten::sort.stable: ONNX's TopK gives of equal numbers the first one first."""
    from onnxscript.function_libs.torch_lib.ops.core import aten_sort

    return aten_sort(self, dim, descending)  # type: ignore[no-any-return]


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """aten::scaled_dot_product_attention of [..., length, width] of any rank; the exporter's has four axes.

    Axes before the last two are broadcast. A row of a mask of truth values that allows nothing gives 0, as in
    PyTorch; the exporter's is NaN. Raises ValueError for dropout, which the exporter ignores.
    """
    import onnx_ir
    from onnxscript import opset18 as op
    from onnxscript.function_libs.torch_lib.ops.nn import aten_scaled_dot_product_attention

    if dropout_p:
        raise ValueError(
            f"scaled_dot_product_attention with dropout_p={dropout_p} draws random numbers; "
            "pass dropout_p=0.0 outside of training"
        )
    shapes = [list(x.shape)[:-2] for x in (query, key, value)]
    rank = 2 + max(len(shape) for shape in shapes)
    if rank > 4 and not shapes[0] == shapes[1] == shapes[2]:
        query, key, value = _of_one_batch(rank - 2, query, key, value)

    def four(x: Any) -> Any:
        rank = len(x.shape)
        if rank == 4:
            return x
        if rank < 4:
            reshaped = op.Unsqueeze(x, ints(*range(4 - rank)))
            reshaped.shape = onnx_ir.Shape([1] * (4 - rank) + list(x.shape))
        else:
            reshaped = op.Reshape(x, op.Concat(ints(-1), op.Shape(x, start=rank - 3), axis=0))
            reshaped.shape = onnx_ir.Shape([None, *list(x.shape)[-3:]])
        reshaped.dtype = x.dtype
        return reshaped

    if attn_mask is not None and rank > 4 and len(attn_mask.shape) > 3:
        kind, last = attn_mask.dtype, op.Shape(attn_mask, start=len(attn_mask.shape) - 2)
        attn_mask = op.Expand(attn_mask, op.Concat(op.Shape(query, end=rank - 2), last, axis=0))
        attn_mask = op.Reshape(attn_mask, op.Concat(ints(-1), op.Shape(attn_mask, start=rank - 3), axis=0))
        attn_mask.dtype = kind
    attended = aten_scaled_dot_product_attention(
        four(query), four(key), four(value), attn_mask, dropout_p, is_causal, scale, enable_gqa
    )
    if attn_mask is not None and attn_mask.dtype == _BOOL:
        allowed = op.ReduceMax(op.Cast(attn_mask, to=_INT32), ints(-1))
        zero = op.CastLike(op.Constant(value_float=0.0), attended)
        attended = op.Where(op.Cast(allowed, to=_BOOL), attended, zero)
    if rank == 4:
        return attended
    if rank < 4:
        return op.Squeeze(attended, ints(*range(4 - rank)))
    sizes = op.Concat(op.Shape(query, end=rank - 1), op.Shape(value, start=rank - 1), axis=0)
    return op.Reshape(attended, sizes)


def _of_one_batch(axes: int, *tensors: Any) -> list[Any]:
    """`tensors` [..., length, width], whose `axes` axes before the last two are broadcast to each other."""
    import onnx_ir
    from onnxscript import opset18 as op

    slices = []
    for x in tensors:
        wide = x
        for other in tensors:
            wide = op.Expand(wide, op.Concat(op.Shape(other, end=-2), op.Shape(x, start=-2), axis=0))
        wide.shape = onnx_ir.Shape([None] * axes + list(x.shape)[-2:])
        wide.dtype = x.dtype
        slices.append(wide)
    return slices
