"""Running extremes, products and sums of exponentials; values by rank: cummax, cumprod, median, mode, …

PyTorch's exporter to ONNX converts none of them. Each function is traced by the exporter, and computes what
the operator of its name computes, for numbers that are no NaN. Of equal numbers, median and kthvalue may
give the place of any, as PyTorch's may.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kiln.frontend.torch.onnx_steps import cut, ints, like, moved_last
from kiln.frontend.torch.present import aten as own_operators

_BOOL, _INT32, _INT64, _FLOATS = 9, 6, 7, (1, 10, 11, 16)  # of ONNX's element types
_Combine = Callable[[list[Any], list[Any]], list[Any]]


def scans() -> Mapping[Any, Callable[..., Any]]:
    """The operators of this module, for torch.onnx.export's `custom_translation_table`."""

    aten = own_operators()
    return {
        aten.cummax.default: cummax,
        aten.cummin.default: cummin,
        aten.cumprod.default: cumprod,
        aten.logcumsumexp.default: logcumsumexp,
        aten.kthvalue.default: kthvalue,
        aten.median.default: lambda self: median(_flat(self), -1)[0],
        aten.median.dim: median,
        aten.nanmedian.default: lambda self: nanmedian(_flat(self), -1)[0],
        aten.nanmedian.dim: nanmedian,
        aten.mode.default: mode,
    }


def _scanned(parts: list[Any], count: int, combine: _Combine) -> list[Any]:
    """The scan of `count` elements along the last axis, in as many steps as that number has bits."""
    from onnxscript import opset18 as op

    shift = 1
    while shift < count:
        old, new = ([cut(part, -1, a, b) for part in parts] for a, b in ((0, count - shift), (shift, count)))
        combined = zip([cut(part, -1, 0, shift) for part in parts], combine(old, new), strict=True)
        parts = [op.Concat(*pair, axis=-1) for pair in combined]
        shift *= 2
    return parts


def _places(x: Any, rank: int) -> Any:
    """0, 1, … [n], int64, for x [..., n]."""
    from onnxscript import opset18 as op

    return op.Sub(op.CumSum(op.Expand(ints(1), op.Shape(x, start=rank - 1)), ints(0)), ints(1))


def _pairs(x: Any, rank: int) -> tuple[Any, Any, Any]:
    """x [..., n] as rows [..., 1, n] and columns [..., n, 1], and where [n, n] a row's place is not later."""
    from onnxscript import opset18 as op

    places = _places(x, rank)
    before = op.LessOrEqual(places, op.Unsqueeze(places, ints(-1)))
    return op.Unsqueeze(x, ints(-2)), op.Unsqueeze(x, ints(-1)), before


def cummax(self: Any, dim: int) -> tuple[Any, Any]:
    """aten::cummax: the greatest so far along an axis, and its last place."""
    from onnxscript import opset18 as op

    return _running_extreme(op.GreaterOrEqual, op.ReduceMax, self, dim)


def cummin(self: Any, dim: int) -> tuple[Any, Any]:
    """aten::cummin: the least so far along an axis, and its last place."""
    from onnxscript import opset18 as op

    return _running_extreme(op.LessOrEqual, op.ReduceMin, self, dim)


def _running_extreme(better: Any, reduce: Any, self: Any, dim: int) -> tuple[Any, Any]:
    from onnxscript import opset18 as op

    rank = len(self.shape)
    if rank == 0:
        return op.Identity(self), op.Constant(value_int=0)
    numbers = op.Cast(self, to=_INT32) if int(self.dtype) == _BOOL else self
    x, back = moved_last(numbers, dim, rank)
    count = self.shape[dim]
    if isinstance(count, int):

        def combine(old: list[Any], new: list[Any]) -> list[Any]:
            kept = better(new[0], old[0])
            return [op.Where(kept, later, earlier) for earlier, later in zip(old, new, strict=True)]

        index = op.Expand(ints(*range(count)), op.Shape(x))
        values, index = _scanned([x, index], count, combine)
    else:
        row, column, before = _pairs(x, rank)
        values = reduce(op.Where(before, row, column), ints(-1), keepdims=0)
        same = op.And(op.Equal(row, op.Unsqueeze(values, ints(-1))), before)
        index = op.ReduceMax(op.Where(same, _places(x, rank), ints(-1)), ints(-1), keepdims=0)
    return op.CastLike(back(values), self), back(index)


def cumprod(self: Any, dim: int, dtype: int = -1) -> Any:
    """aten::cumprod: the products so far along an axis; those of integers are int64."""
    from onnxscript import opset18 as op

    x = self
    if dtype not in (-1, None):
        x = op.Cast(self, to=dtype)
    elif int(self.dtype) not in _FLOATS:
        x = op.Cast(self, to=_INT64)
    return _scan_of_one(x, self.shape, dim, op.Mul, _products)


def _products(x: Any, rank: int) -> Any:
    from onnxscript import opset18 as op

    row, _, before = _pairs(x, rank)
    return op.ReduceProd(op.Where(before, row, like(1, x)), ints(-1), keepdims=0)


def logcumsumexp(self: Any, dim: int) -> Any:
    """aten::logcumsumexp: logarithms of the sums of exponentials so far along an axis."""
    from onnxscript import opset18 as op

    def both(a: Any, b: Any) -> Any:
        most = op.Max(a, b)
        away = op.Sub(op.Min(a, b), op.Where(op.IsInf(most), like(0, most), most))
        return op.Where(op.IsInf(most), most, op.Add(most, op.Log(op.Add(op.Exp(away), like(1, away)))))

    return _scan_of_one(self, self.shape, dim, both, _sums_of_exponentials)


def _sums_of_exponentials(x: Any, rank: int) -> Any:
    from onnxscript import opset18 as op

    row, column, before = _pairs(x, rank)
    most = op.ReduceMax(op.Where(before, row, column), ints(-1))
    finite = op.Where(op.IsInf(most), like(0, x), most)
    sums = op.ReduceSum(op.Where(before, op.Exp(op.Sub(row, finite)), like(0, x)), ints(-1))
    return op.Squeeze(op.Where(op.IsInf(most), most, op.Add(finite, op.Log(sums))), ints(-1))


def _scan_of_one(
    self: Any, shape: Sequence[Any], dim: int, combine: Callable[[Any, Any], Any], pairwise: Any
) -> Any:
    """The scan of one tensor; `pairwise` computes it where the size of the axis is dynamic."""
    from onnxscript import opset18 as op

    rank = len(shape)
    if rank == 0:
        return op.Identity(self)
    x, back = moved_last(self, dim, rank)
    count = shape[dim]
    if not isinstance(count, int):
        return back(pairwise(x, rank))
    return back(_scanned([x], count, lambda old, new: [combine(old[0], new[0])])[0])


def _flat(x: Any) -> Any:
    from onnxscript import opset18 as op

    flat = op.Reshape(x, ints(-1))
    sizes = list(x.shape)
    if all(isinstance(size, int) for size in sizes):
        import math

        import onnx_ir

        flat.shape = onnx_ir.Shape([math.prod(sizes)])
    return flat


def kthvalue(self: Any, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Any, Any]:
    """aten::kthvalue: the number that is k-th in ascending order along an axis, from 1 on, and its place."""
    from onnxscript import opset18 as op

    if self.shape is not None and not self.shape:
        return op.Identity(self), op.Constant(value_int=0)
    ordered = op.TopK(self, ints(k), axis=dim, largest=0)
    return _picked(ordered, ints(k - 1), dim, keepdim)


def median(self: Any, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
    """aten::median.dim: the middle number along an axis, the lower one of two, and its position."""
    from onnxscript import opset18 as op

    if self.shape is not None and not self.shape:
        return op.Identity(self), op.Constant(value_int=0)
    count = None if self.shape is None else self.shape[dim]
    if isinstance(count, int):
        return kthvalue(self, (count + 1) // 2, dim, keepdim)
    sizes = op.Shape(self)
    count = op.Gather(sizes, ints(dim), axis=0)
    middle = op.Div(op.Sub(count, ints(1)), ints(2))
    return _picked(op.TopK(self, count, axis=dim, largest=0), middle, dim, keepdim)


def nanmedian(self: Any, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
    """aten::nanmedian.dim: `median` of the numbers that are no NaN; NaN where there are none."""
    from onnxscript import opset18 as op

    if self.shape is not None and not self.shape:
        return op.Identity(self), op.Constant(value_int=0)
    absent = op.IsNaN(self)
    count = op.ReduceSum(op.Cast(op.Not(absent), to=_INT64), ints(dim))
    middle = op.Max(op.Div(op.Sub(count, ints(1)), ints(2)), ints(0))
    numbers = op.Where(absent, like(float("inf"), self), self)
    ordered = op.TopK(numbers, op.Gather(op.Shape(self), ints(dim), axis=0), axis=dim, largest=0)
    values, index = (op.GatherElements(part, middle, axis=dim) for part in ordered)
    values = op.Where(op.Equal(count, ints(0)), like(float("nan"), self), values)
    return (values, index) if keepdim else (op.Squeeze(values, ints(dim)), op.Squeeze(index, ints(dim)))


def _picked(ordered: Any, place: Any, dim: int, keepdim: bool) -> tuple[Any, Any]:
    from onnxscript import opset18 as op

    values, index = (op.Gather(part, place, axis=dim) for part in ordered)
    return (values, index) if keepdim else (op.Squeeze(values, ints(dim)), op.Squeeze(index, ints(dim)))


def mode(self: Any, dim: int = -1, keepdim: bool = False) -> tuple[Any, Any]:
    """aten::mode: the most frequent number along an axis, the least of several, and its last place."""
    from onnxscript import opset18 as op

    rank = len(self.shape)
    if rank == 0:
        return op.Identity(self), op.Constant(value_int=0)
    numbers = op.Cast(self, to=_INT32) if int(self.dtype) == _BOOL else self
    x, _ = moved_last(numbers, dim, rank)
    row, column, _ = _pairs(x, rank)
    counts = op.ReduceSum(op.Cast(op.Equal(row, column), to=_INT64), ints(-1), keepdims=0)
    frequent = op.Equal(counts, op.ReduceMax(counts, ints(-1)))
    values = op.ReduceMin(op.Where(frequent, x, op.ReduceMax(x, ints(-1))), ints(-1))
    same = op.Equal(x, values)
    index = op.ReduceMax(op.Where(same, _places(x, rank), ints(-1)), ints(-1), keepdims=0)
    values = op.CastLike(op.Squeeze(values, ints(-1)), self)
    if keepdim:
        return op.Unsqueeze(values, ints(dim)), op.Unsqueeze(index, ints(dim))
    return values, index
