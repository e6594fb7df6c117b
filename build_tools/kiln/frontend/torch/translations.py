"""Operators of PyTorch that its ONNX exporter converts wrongly, or to unnecessary loops.

torch.nn.EmbeddingBag: the exporter writes a Loop over the bags, whose rows are cut out by sizes of the run.
Here each row is added (or compared, for the mode `max`) into the result of its bag by ScatterElements, for
any number of bags and of rows. scatter_reduce with the mode `mean`: the exporter writes the last value for
each position instead of the mean. Floor divisions of dynamic sizes: the exporter writes ONNX's division,
which rounds a negative quotient up. Squeeze of an axis that has other sizes than 1, which changes nothing in
PyTorch, and is an error in ONNX. Copies of tensors that are broadcast: the exporter does not. Numbers of
elements of tensors with dynamic sizes: the exporter has no conversion. Whether any element is true, of none:
the exporter says yes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kiln.frontend.torch.present import aten as own_operators

_SUM, _MEAN, _MAX = range(3)  # of torch.nn.functional.embedding_bag
_LEAST = float("-inf")
_INT64, _BOOL = 7, 9  # element types of ONNX


def translations() -> Mapping[Any, Callable[..., Any]]:
    """The operators that this module converts, for torch.onnx.export's `custom_translation_table`."""

    aten = own_operators()
    return {
        aten.embedding_bag.default: embedding_bag,
        aten.embedding_bag.padding_idx: embedding_bag_of_rows,
        aten._embedding_bag.default: embedding_bag,
        aten._embedding_bag_forward_only.default: embedding_bag,
        aten.scatter_reduce.two: scatter_reduce,
        aten.any.default: any_of,
        aten.any.dim: any_of,
        aten.any.dims: any_of,
        aten.copy.default: copy,
        aten.sym_numel.default: count,
        operator.floordiv: floor_division,
        aten.squeeze.dim: squeeze,
        aten.squeeze.dims: squeeze,
    }


def any_of(self: Any, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Any:
    """aten::any: whether an element is not 0, and false of no elements, of which the exporter says true."""
    from onnxscript import opset18 as op

    axes = [dim] if isinstance(dim, int) else list(dim or ())
    numbers = op.Cast(op.Cast(self, to=_BOOL), to=_INT64)
    if axes and len(self.shape):
        greatest = op.ReduceMax(numbers, op.Constant(value_ints=axes), keepdims=keepdim)
    else:
        greatest = op.ReduceMax(numbers, keepdims=keepdim) if len(self.shape) else numbers
    return op.Greater(greatest, op.Constant(value_int=0))  # of no elements, the greatest is the least integer


def copy(self: Any, src: Any, non_blocking: bool = False) -> Any:
    """aten::copy: `src` in the shape and the type of `self`; the exporter leaves it in its own shape."""
    from onnxscript import opset18 as op

    made = op.CastLike(src, self)
    return made if list(src.shape) == list(self.shape) else op.Expand(made, op.Shape(self))


def squeeze(self: Any, dim: int | Sequence[int]) -> Any:
    """aten::squeeze.dim and .dims: `self` without those of the axes whose size is 1."""
    from onnxscript import opset18 as op

    sizes = list(self.shape)
    axes = [dim] if isinstance(dim, int) else list(dim)
    single = sorted({axis % len(sizes) for axis in axes if sizes and sizes[axis % len(sizes)] == 1})
    return op.Squeeze(self, op.Constant(value_ints=single)) if single else op.Identity(self)


def count(self: Any) -> Any:
    """The number of elements of a tensor with dynamic sizes, `x.numel()`."""
    from onnxscript import opset18 as op

    return op.Size(self)


def floor_division(self: Any, other: Any) -> Any:
    """The quotient of two sizes, rounded down; ONNX's remainder of integers has the sign of the divisor."""
    from onnxscript import opset18 as op

    return op.Div(op.Sub(self, op.Mod(self, other)), other)


def scatter_reduce(
    values: Any, dim: int, index: Any, src: Any, reduce: str, include_self: bool = True
) -> Any:
    """aten::scatter_reduce.two, traced by PyTorch's exporter; all modes but `mean` are the exporter's own.

    Elements of `src`, of the shape of `index`, go to `values` at the positions `index` of the axis `dim`.
    Means of integers are rounded down.
    """
    from onnxscript import opset18 as op
    from onnxscript.function_libs.torch_lib.ops.core import aten_scatter_reduce

    if reduce != "mean":
        return aten_scatter_reduce(values, dim, index, src, reduce, include_self)

    def full(number: float, like: Any) -> Any:
        return op.CastLike(op.Expand(op.Constant(value_floats=[number]), op.Shape(like)), values)

    def added(to: Any, what: Any) -> Any:
        return op.ScatterElements(to, index, what, axis=dim, reduction="add")

    def divided(sums: Any, counts: Any) -> Any:
        is_float = int(values.dtype) in (1, 10, 11, 16)
        return op.Div(sums if is_float else op.Sub(sums, op.Mod(sums, counts)), counts)

    if include_self:
        return divided(added(values, src), added(full(1.0, values), full(1.0, src)))
    cleared = op.ScatterElements(values, index, full(0.0, src), axis=dim)
    counts = added(full(0.0, values), full(1.0, src))
    return divided(added(cleared, src), op.Max(counts, full(1.0, values)))


def embedding_bag(
    weight: Any,
    indices: Any,
    offsets: Any,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = -1,
) -> tuple[Any, Any, Any, Any]:
    """aten::_embedding_bag, traced by PyTorch's exporter: the results of the bags, and three for gradients.

    weight: (rows, width); indices: (n,); offsets: (bags,), where each bag begins, and the end of the last one
    with `include_last_offset`; per_sample_weights: (n,). Rows equal to `padding_idx`, if it is not -1, do not
    count. An empty bag is 0.
    """
    from onnxscript import opset18 as op

    zero, one, last = (op.Constant(value_ints=[value]) for value in (0, 1, -1))
    indices = op.Cast(op.Reshape(indices, last), to=7)
    offsets = op.Cast(offsets, to=7)
    starts = op.Slice(offsets, zero, last, zero) if include_last_offset else offsets
    rows = op.Gather(weight, indices)
    weights_of_indices = op.CastLike(op.Expand(op.Constant(value_ints=[1]), op.Shape(indices)), weight)
    if padding_idx is not None and padding_idx != -1:
        weights_of_indices = op.CastLike(
            op.Not(op.Equal(indices, op.Constant(value_ints=[padding_idx]))), weight
        )
    # The bag of a row is the number of bags that begin at it or before it, less one.
    zeros = op.Expand(zero, op.Add(op.Shape(indices), one))
    begun = op.ScatterElements(zeros, starts, op.Expand(one, op.Shape(starts)), axis=0, reduction="add")
    bags = op.Slice(op.Sub(op.CumSum(begun, op.Constant(value_int=0)), one), zero, last, zero)
    shape = op.Concat(op.Shape(starts), op.Shape(weight, start=1), axis=0)
    index = op.Expand(op.Unsqueeze(bags, one), op.Shape(rows))
    column = op.Unsqueeze(weights_of_indices, one)
    empty = op.CastLike(op.Expand(op.Constant(value_floats=[0.0]), shape), weight)
    counted = op.CastLike(op.Expand(op.Constant(value_floats=[0.0]), op.Shape(starts)), weight)
    counts = op.Unsqueeze(op.ScatterElements(counted, bags, weights_of_indices, axis=0, reduction="add"), one)
    if mode == _MAX:
        least = op.CastLike(op.Constant(value_floats=[_LEAST]), weight)
        values = op.Where(op.Greater(column, op.CastLike(zero, weight)), rows, least)
        greatest = op.ScatterElements(op.Expand(least, shape), index, values, axis=0, reduction="max")
        result = op.Where(op.Greater(counts, op.CastLike(zero, weight)), greatest, empty)
    else:
        if per_sample_weights is not None:
            column = op.Mul(column, op.Unsqueeze(op.Reshape(per_sample_weights, last), one))
        result = op.ScatterElements(empty, index, op.Mul(rows, column), axis=0, reduction="add")
        if mode == _MEAN:
            result = op.Div(result, op.Max(counts, op.CastLike(one, weight)))
    first, second, third = (op.Shape(op.Constant(value_float=0.0)) for _ in range(3))  # no elements
    return result, first, second, third


def embedding_bag_of_rows(
    weight: Any,
    indices: Any,
    offsets: Any,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Any,
    include_last_offset: bool,
    padding_idx: int | None,
) -> tuple[Any, Any, Any, Any]:
    """aten::embedding_bag.padding_idx, as `embedding_bag`; a negative `padding_idx` counts from the last row.

    Raises ValueError for a negative one where the number of rows is dynamic.
    """
    if padding_idx is not None and padding_idx < 0:
        rows = weight.shape[0]
        if not isinstance(rows, int):
            raise ValueError("embedding_bag with a negative padding_idx and a dynamic number of rows")
        padding_idx += rows
    return embedding_bag(
        weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset,
        padding_idx,
    )  # fmt: skip
