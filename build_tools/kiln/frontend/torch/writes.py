"""Writes at indices of one axis, `x[:, index] = values`, and under a mask, `x[mask] = values`.

PyTorch's exporter moves the axis to the front of the whole tensor and back, which in a cache of keys and
values takes longer than the write. It counts the elements of a mask, a size that only the run knows, also
where all of them receive the same values. Each function is traced by the exporter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kiln.frontend.torch.onnx_steps import ints, inverse, places_along
from kiln.frontend.torch.present import aten as own_operators

_BOOL = 9  # of ONNX's element types


def writes() -> Mapping[Any, Callable[..., Any]]:
    """The operators of this module, for torch.onnx.export's `custom_translation_table`."""
    aten = own_operators()
    return {
        aten.index_copy.default: index_copy,
        aten.index_put.default: index_put,
        aten._unsafe_index_put.default: index_put,
    }


def index_copy(self: Any, dim: int, index: Any, source: Any) -> Any:
    """aten::index_copy: self with `source` at the places `index`, [n] or one number, of the axis `dim`."""
    from onnxscript import opset18 as op

    if not len(self.shape):
        return op.Reshape(source, op.Shape(self))
    index = op.Reshape(index, ints(-1))
    if not len(source.shape):  # a number, for a tensor of one axis
        source = op.Reshape(source, ints(-1))
    return _written(self, dim % len(self.shape), index, source, "none")


def index_put(self: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    """aten::index_put: self with `values` at indices or under a mask.

    The exporter's form but for one mask, and for indices of one axis after the first.

    `indices`: by axis of self, or None for all of the axis.
    """
    from onnxscript import opset18 as op
    from onnxscript.function_libs.torch_lib.ops.core import aten_index_put

    axes = [axis for axis, index in enumerate(indices) if index is not None]
    if len(axes) == 1 and int(indices[axes[0]].dtype) == _BOOL:
        written = _under_mask(self, axes[0], indices[axes[0]], values, accumulate)
        return aten_index_put(self, indices, values, accumulate) if written is None else written
    alone = len(axes) == 1 and axes[0] > 0 and len(indices[axes[0]].shape) == 1
    if not alone:
        return aten_index_put(self, indices, values, accumulate)
    axis, index, sizes = axes[0], indices[axes[0]], op.Shape(self)
    after = op.Slice(sizes, ints(axis + 1), ints(len(self.shape)))
    shape = op.Concat(op.Slice(sizes, ints(0), ints(axis)), op.Shape(index), after, axis=0)
    return _written(self, axis, index, op.Expand(values, shape), "add" if accumulate else "none")


def _under_mask(self: Any, axis: int, mask: Any, values: Any, accumulate: bool) -> Any:
    """self with `values` where `mask`, of the axes of self from `axis` on, is true.

    `values` broadcasts to the axes before `axis`, one for the true elements, and those after the mask's. None
    for sums of truth values, and for a mask without axes whose values have the axis of the true elements.
    """
    from onnxscript import opset18 as op

    rank, masked = len(self.shape), len(mask.shape)
    after = rank - axis - masked
    # The axis of `values` for the true elements; negative: it has none.
    counted = len(values.shape) - after - 1
    if (accumulate and int(self.dtype) == _BOOL) or (not masked and counted >= 0):
        return None
    if counted < 0 or values.shape[counted] == 1:  # all true elements receive the same values
        if masked > 1 and counted >= 0:
            values = op.Unsqueeze(values, ints(*range(counted, counted + masked - 1)))
        if after:
            mask = op.Unsqueeze(mask, ints(*range(masked, masked + after)))
        return op.Where(mask, op.Add(self, values) if accumulate else values, self)
    if counted < axis:
        values = op.Unsqueeze(values, ints(*range(axis - counted)))
    if axis:  # ScatterND writes along the first axes
        values = op.Transpose(values, perm=[axis, *range(axis), *range(axis + 1, axis + 1 + after)])
    order = [*range(axis, axis + masked), *range(axis), *range(axis + masked, rank)]
    moved = op.Transpose(self, perm=order) if axis else self
    if axis + after:
        others = op.Slice(op.Shape(moved), ints(masked), ints(rank))
        values = op.Expand(values, op.Concat(ints(1), others, axis=0))
    places = op.Transpose(op.NonZero(mask), perm=[1, 0])
    written = op.ScatterND(moved, places, values, reduction="add" if accumulate else "none")
    return op.Transpose(written, perm=inverse(order)) if axis else written


def _written(self: Any, axis: int, index: Any, values: Any, reduction: str) -> Any:
    """self with `values`, as long as `index` [n] along `axis` and of the sizes of self along the others."""
    from onnxscript import opset18 as op

    places = places_along(axis, index, values, len(self.shape))
    return op.ScatterElements(self, places, values, axis=axis, reduction=reduction)
