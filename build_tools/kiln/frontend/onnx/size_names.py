"""Names of dynamic sizes in an ONNX graph, replaced by those of a model's configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from kiln.config import sizes
from kiln.config.sizes import SizeExpr
from kiln.frontend.onnx.declared_shapes import declared_shape


def name_sizes(model: onnx.ModelProto, shapes: Mapping[str, Sequence[SizeExpr]]) -> None:
    """Give the sizes of all tensors the names, numbers or expressions of `shapes`, in place.

    `shapes`: by input, for each axis its size; inputs that the graph does not have are ignored. A symbol that
    the file uses for an axis of an input is replaced in the shapes of every tensor.
    """
    graph = model.graph
    symbols: dict[str, SizeExpr] = {}
    whole: list[tuple[SizeExpr, SizeExpr]] = []  # sizes that are expressions in the file
    for value in graph.input:
        declared = declared_shape(value) or ()
        for size, wanted in zip(declared, shapes.get(value.name, ()), strict=False):
            if isinstance(size, str):
                symbols.setdefault(size, wanted)
            elif isinstance(size, list):
                whole.append((size, wanted))
    for value in (*graph.input, *graph.output, *graph.value_info):
        for axis, size in enumerate(declared_shape(value) or ()):
            if isinstance(size, (str, list)):
                known = next((wanted for expression, wanted in whole if expression == size), None)
                if known is None:
                    known = sizes.substituted(size, {n: symbols.get(n, n) for n in sizes.names(size)})
                _set(value.type.tensor_type.shape.dim[axis], known)


def _set(dim: onnx.TensorShapeProto.Dimension, size: SizeExpr) -> None:
    if isinstance(size, int):
        dim.dim_value = size
    else:
        dim.dim_param = sizes.show(size)
