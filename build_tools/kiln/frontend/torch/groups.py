"""Products of groups of rows with a matrix each, as mixtures of experts have them, and histograms.

PyTorch's exporter to ONNX converts none of them. Each translation is traced by the exporter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kiln.frontend.torch.onnx_steps import like
from kiln.frontend.torch.present import aten as own_operators

_INT64 = 7  # of ONNX's element types
_FALLBACK = "grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor"
_libraries: list[Any] = []  # PyTorch forgets the operators of a library object that is freed


def grouped() -> Mapping[Any, Callable[..., Any]]:
    """The operators of this module, for torch.onnx.export's `custom_translation_table`."""
    import torch

    aten = own_operators()
    found: dict[Any, Callable[..., Any]] = {
        aten._grouped_mm.default: grouped_mm,
        aten.histc.default: histc,
    }
    if hasattr(torch.ops.transformers, "grouped_mm_fallback"):
        found[torch.ops.transformers.grouped_mm_fallback.default] = grouped_mm
    return found


def define_fallback() -> bool:
    """Define the operator that the library transformers exports for experts; False if it is defined.

    Archives with it can be loaded, and computed on the CPU, where transformers is not installed.
    """
    import torch

    if hasattr(torch.ops.transformers, "grouped_mm_fallback"):
        return False
    library = torch.library.Library("transformers", "FRAGMENT")
    library.define(_FALLBACK)
    library.impl("grouped_mm_fallback", _computed, "CPU")
    library.impl("grouped_mm_fallback", lambda x, w, offs: x.new_empty(x.size(0), w.size(2)), "Meta")
    _libraries.append(library)
    return True


def _computed(x: Any, weight: Any, offs: Any) -> Any:
    """Rows offs[g - 1] to offs[g] of x [rows, k], times weight[g] [k, n]; rows of no group are 0."""
    result = x.new_zeros(x.size(0), weight.size(2))
    begin = 0
    for group, end in enumerate(offs.tolist()):
        result[begin:end] = x[begin:end] @ weight[group]
        begin = end
    return result


def grouped_mm(self: Any, mat2: Any, offs: Any = None, bias: Any = None, out_dtype: int | None = None) -> Any:
    """aten::_grouped_mm: products of groups that end at the positions `offs` [groups].

    [rows, k] x [groups, k, n] multiplies each row by the matrix of its group, [groups, m, k] x [k, columns]
    each column. Rows and columns after the last group are 0. Raises ValueError for groups along k, which only
    gradients have.
    """
    from onnxscript import opset18 as op
    from onnxscript.function_libs.torch_lib.ops.core import aten_grouped_mm

    ranks = len(self.shape), len(mat2.shape)
    if offs is None:
        return aten_grouped_mm(self, mat2, None, bias, -1 if out_dtype is None else out_dtype)
    if ranks == (2, 3):
        result = _rows(self, mat2, offs)
    elif ranks == (3, 2):
        columns, matrices = op.Transpose(mat2, perm=[1, 0]), op.Transpose(self, perm=[0, 2, 1])
        result = op.Transpose(_rows(columns, matrices, offs), perm=[1, 0])
    else:
        raise ValueError("_grouped_mm of two matrices, whose groups are along the axis of the sum")
    if bias is not None:
        result = op.Add(result, bias)
    return result if out_dtype in (None, -1) else op.Cast(result, to=out_dtype)


def _rows(x: Any, matrices: Any, offs: Any) -> Any:
    """Each row of x [rows, k] times the matrix [groups, k, n] of its group.

    Few rows read the matrix of each; many rows, or a dynamic number, are multiplied by every matrix, which
    needs no copies of matrices.
    """
    from onnxscript import opset18 as op

    zero, one = (op.Constant(value_ints=[number]) for number in (0, 1))
    ends = op.Cast(offs, to=_INT64)
    rows = op.Shape(x, start=0, end=1)
    places = op.Unsqueeze(op.Sub(op.CumSum(op.Expand(one, rows), zero), one), one)
    ended = op.ReduceSum(op.Cast(op.LessOrEqual(ends, places), to=_INT64), one, keepdims=0)
    groups = op.Shape(ends)
    group = op.Min(ended, op.Sub(groups, one))
    count, matrix_count = (None if like.shape is None else like.shape[0] for like in (x, matrices))
    if isinstance(count, int) and isinstance(matrix_count, int) and count <= matrix_count:
        chosen = op.Squeeze(op.MatMul(op.Unsqueeze(x, one), op.Gather(matrices, group)), one)
    else:
        index = op.Concat(op.Unsqueeze(group, one), places, axis=1)
        chosen = op.GatherND(op.MatMul(x, matrices), index)
    inside = op.Unsqueeze(op.Less(ended, groups), one)
    return op.Where(inside, chosen, op.CastLike(op.Constant(value_float=0.0), chosen))


def histc(self: Any, bins: int = 100, least: float = 0.0, greatest: float = 0.0) -> Any:
    """aten::histc: how many numbers are in each of `bins` equal parts of [least, greatest].

    Others are not counted. Equal limits, 0 and 0 by default, stand for the least and the greatest number, one
    apart where they agree.
    """
    from onnxscript import opset18 as op

    numbers = op.Reshape(self, op.Constant(value_ints=[-1]))
    low, high = (like(limit, self) for limit in (least, greatest))
    zero, one = (like(number, self) for number in (0.0, 1.0))
    if least == greatest:
        low, high = op.ReduceMin(numbers, keepdims=0), op.ReduceMax(numbers, keepdims=0)
        single = op.Equal(low, high)
        low, high = op.Where(single, op.Sub(low, one), low), op.Where(single, op.Add(high, one), high)
    inside = op.And(op.GreaterOrEqual(numbers, low), op.LessOrEqual(numbers, high))
    scale = like(bins, self)
    place = op.Div(op.Mul(op.Sub(op.Where(inside, numbers, low), low), scale), op.Sub(high, low))
    index = op.Min(op.Cast(place, to=_INT64), op.Constant(value_int=bins - 1))
    empty = op.Expand(zero, op.Constant(value_ints=[bins]))
    return op.ScatterElements(empty, index, op.Where(inside, one, zero), axis=0, reduction="add")
