"""STABLEHLO_SCATTER of windows, which TVM 0.27 converts for single elements and four functions alone.

Converters of JAX and PyTorch write it for `x.at[…].set(…)`, `index_put` and `scatter`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from kiln.frontend.tflite.operands import TfliteOperands, const

op = relax.op
_FUNCTIONS = {"ADD": "add", "MUL": "mul", "MULTIPLY": "mul", "MAXIMUM": "max", "MINIMUM": "min"}


def stablehlo_scatter(node: TfliteOperands) -> Any:
    """STABLEHLO_SCATTER: windows of the updates, at places of the run; elements beyond an end are dropped.

    Raises ValueError for options that do not fit together and for a function of more than one operator.
    """
    options = node.options("StablehloScatterOptions")
    shape, index_shape, update_shape = (node.shape(index) for index in range(3))
    if any(node.inputs[index].qnn_params is not None for index in (0, 2)):
        raise ValueError("its tensors are quantised")
    window = _axes(options.UpdateWindowDimsAsNumpy(), len(update_shape), "update_window_dims")
    inserted = _axes(options.InsertedWindowDimsAsNumpy(), len(shape), "inserted_window_dims")
    indexed = _axes(options.ScatterDimsToOperandDimsAsNumpy(), len(shape), "scatter_dims_to_operand_dims")
    at = int(options.IndexVectorDim())
    indices = node.emit(op.astype(node.raw(1), "int64"))
    if at == len(index_shape):  # each index is a tuple of one number
        indices, index_shape = node.emit(op.expand_dims(indices, at)), [*index_shape, 1]
    _axes([at], len(index_shape), "index_vector_dim")
    others = [axis for axis in range(len(index_shape)) if axis != at]
    indices = node.emit(op.permute_dims(indices, [*others, at]))

    rows = [axis for axis in range(len(update_shape)) if axis not in window]
    windowed = [axis for axis in range(len(shape)) if axis not in inserted]
    lead = [update_shape[axis] for axis in rows]
    fits = len(windowed) == len(window) and index_shape[at] == len(indexed)
    if not fits or lead != [index_shape[axis] for axis in others] or not shape:
        raise ValueError(f"its operands of {shape}, {index_shape} and {update_shape} do not fit its options")
    lengths = {axis: update_shape[place] for axis, place in zip(windowed, window, strict=True)}
    partial = [axis for axis, length in lengths.items() if length != shape[axis]]
    last = max([*indexed, *partial], default=0)  # whole slices follow: their elements need no index
    counted = [axis for axis in windowed if axis <= last]
    wide = [*lead, *(lengths[axis] for axis in counted)]

    columns = []
    for axis in range(last + 1):
        column: Any = const(np.zeros([1] * len(wide)), "int64")
        if axis in indexed:
            column = op.take(indices, const([indexed.index(axis)], "int64"), len(lead))
            column = node.emit(op.reshape(node.emit(column), [*lead, *[1] * len(counted)]))
        if axis in lengths:
            place = len(lead) + counted.index(axis)
            sizes = [lengths[axis] if number == place else 1 for number in range(len(wide))]
            offsets = const(np.arange(lengths[axis]).reshape(sizes), "int64")
            column = node.emit(op.add(column, offsets))
        columns.append(node.emit(op.expand_dims(node.emit(op.broadcast_to(column, wide)), len(wide))))
    tuples = node.emit(op.concat(columns, len(wide)))
    return _scattered(node, tuples, node.emit(op.permute_dims(node.raw(2), [*rows, *window])))


def _scattered(node: TfliteOperands, tuples: Any, updates: Any) -> Any:
    """The first operand with `updates` at `tuples`, combined by the function of the node."""
    function = _function(node)
    if function is None:
        return node.raw(0)
    if node.dtype(0) != "bool":
        return op.scatter_nd(node.raw(0), tuples, updates, function)
    function = {"add": "max", "mul": "min"}.get(function, function)
    data, new = (node.emit(op.astype(value, "int8")) for value in (node.raw(0), updates))
    return op.astype(node.emit(op.scatter_nd(data, tuples, new, function)), "bool")


def _function(node: TfliteOperands) -> str | None:
    """How an update changes an element, as scatter_nd names it; None: not at all."""
    number = int(node.options("StablehloScatterOptions").UpdateComputationSubgraphIndex())
    body = node.graph(number)
    if body.InputsLength() != 2 or body.OutputsLength() != 1 or body.OperatorsLength() > 1:
        raise ValueError("its function has more than one operator")
    if body.OperatorsLength() == 0:
        return "update" if body.Outputs(0) == body.Inputs(1) else None
    operator = body.Operators(0)
    name = node.name_of(operator).removeprefix("STABLEHLO_")
    if name not in _FUNCTIONS or operator.InputsLength() != 2 or operator.Inputs(0) == operator.Inputs(1):
        raise ValueError(f"its function {name} has no conversion, allowed: {', '.join(_FUNCTIONS)}")
    return _FUNCTIONS[name]


def _axes(values: Any, rank: int, name: str) -> list[int]:
    """The axes in an option, where none is left out of the file or of a tensor with `rank` axes."""
    axes = [] if isinstance(values, int) else [int(value) for value in values]
    if any(not 0 <= axis < rank for axis in axes) or len({*axes}) != len(axes):
        raise ValueError(f"{name} {axes}, allowed: different axes of 0..{max(rank - 1, 0)}")
    return axes


CONVERTERS = {"STABLEHLO_SCATTER": stablehlo_scatter}
