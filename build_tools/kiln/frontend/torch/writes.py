"""Writes at indices of one axis, `x[:, index] = values`, without the transposes of PyTorch's exporter.

It moves the axis to the front of the whole tensor and back, which in a cache of keys and values takes longer
than the write. Each function is traced by the exporter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kiln.frontend.torch.onnx_steps import ints, places_along
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
    """aten::index_put: self with `values` at indices; the exporter's form but for one axis after the first.

    `indices`: by axis of self, or None for all of the axis.
    """
    from onnxscript import opset18 as op
    from onnxscript.function_libs.torch_lib.ops.core import aten_index_put

    axes = [axis for axis, index in enumerate(indices) if index is not None]
    alone = len(axes) == 1 and axes[0] > 0 and len(indices[axes[0]].shape) == 1
    if not alone or int(indices[axes[0]].dtype) == _BOOL:
        return aten_index_put(self, indices, values, accumulate)
    axis, index, sizes = axes[0], indices[axes[0]], op.Shape(self)
    after = op.Slice(sizes, ints(axis + 1), ints(len(self.shape)))
    shape = op.Concat(op.Slice(sizes, ints(0), ints(axis)), op.Shape(index), after, axis=0)
    return _written(self, axis, index, op.Expand(values, shape), "add" if accumulate else "none")


def _written(self: Any, axis: int, index: Any, values: Any, reduction: str) -> Any:
    """self with `values`, as long as `index` [n] along `axis` and of the sizes of self along the others."""
    from onnxscript import opset18 as op

    places = places_along(axis, index, values, len(self.shape))
    return op.ScatterElements(self, places, values, axis=axis, reduction=reduction)
