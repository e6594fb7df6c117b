"""Rules of operators that compute each element of a batch from the same element of their operands alone.

The batch is axis 0. Such operators can be computed for some elements of the batch at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm import relax

from kiln.extents import shape_of
from kiln.graph.bindings import constant, integers, operator
from kiln.graph.layout import NARY, UNARY
from kiln.lower.row_functions import Functions, operands_with_rows
from kiln.lower.row_rules import RowRule

_BATCH = 0
_ELEMENTWISE = {f"relax.{name}" for name in (*UNARY, *NARY)}


def batch_rule(call: Any, functions: Functions) -> RowRule | None:
    """The rule of an operator whose result has a batch of fixed size; None where elements are not separate.

    functions: those that the module calls.
    """
    name, shape = operator(call), _fixed_shape(call)
    if name is None or shape is None or shape[_BATCH] < 2:
        return None
    if name == "relax.call_tir":
        read = operands_with_rows(call, functions, _BATCH)
        return None if read is None else RowRule(read, shape[_BATCH])
    args = list(call.args[0].fields) if isinstance(call.args[0], relax.Tuple) else list(call.args)
    data = tuple(arg for arg in args if isinstance(arg, relax.Var))
    if not data or any((_fixed_shape(item) or [0])[_BATCH] != shape[_BATCH] for item in data):
        return None
    if name in _ELEMENTWISE:
        separate = _broadcasts(call, data, len(shape))
    else:
        separate = name in _SEPARATE and _SEPARATE[name](call)
    return RowRule(data, shape[_BATCH]) if separate else None


def is_fused(call: Any) -> bool:
    """Whether an operator is computed inside the kernel of another one, or only moves elements."""
    return operator(call) in _ELEMENTWISE | _MOVES


def _fixed_shape(expr: relax.Expr) -> list[int] | None:
    """The sizes of a tensor with axes whose sizes are all fixed; None for others."""
    if not isinstance(expr.ty, relax.TensorType) or expr.ty.shape is None:
        return None
    shape = shape_of(expr)
    return [int(size) for size in shape] if shape and all(isinstance(size, int) for size in shape) else None


def _broadcasts(call: Any, data: tuple[Any, ...], rank: int) -> bool:
    """Whether the operands of an elementwise operator have all axes, and its constants one batch element."""
    constants = [constant(arg) for arg in call.args]
    alike = all(value.ndim < rank or value.shape[_BATCH] == 1 for value in constants if value is not None)
    return alike and all(len(shape_of(item)) == rank for item in data)


def _leaves_batch(axes: Any, rank: int) -> bool:
    """Whether axes, of which None means all, are other ones than the batch."""
    return axes is not None and _BATCH not in [int(axis) % rank for axis in axes]


def _rank(call: Any) -> int:
    return len(shape_of(call.args[0]))


def _has_constant_weights(call: Any) -> bool:
    """Whether a convolution has the batch first and constant weights."""
    return str(call.attrs.data_layout)[0] == "N" and isinstance(call.args[0], relax.Var) and _one_input(call)


def _one_input(call: Any) -> bool:
    return sum(isinstance(arg, relax.Var) for arg in call.args) == 1


def _is_matmul_of_elements(call: Any) -> bool:
    """Whether a matmul multiplies the rows of each batch element by constants, or by a matrix of its own."""
    right = call.args[1]
    value = constant(right)
    if value is not None:
        return value.ndim <= 2 and _rank(call) >= 2
    return _rank(call) == len(shape_of(right)) >= 3


def _keeps_batch_axis(call: Any) -> bool:
    return call.attrs.axes is not None and integers(call.attrs.axes)[0] == _BATCH


def _axes_elsewhere(call: Any) -> bool:
    return _leaves_batch(call.attrs.axis, _rank(call))


def _axis_elsewhere(call: Any) -> bool:
    return _leaves_batch([call.attrs.axis], len(shape_of(call)))


def _normalises_elsewhere(call: Any) -> bool:
    return _leaves_batch(call.attrs.axes, _rank(call)) and _one_input(call)


def _pads_elsewhere(call: Any) -> bool:
    return not any(integers(call.attrs.pad_width)[:2])


def _slices_elsewhere(call: Any) -> bool:
    return _leaves_batch(call.args[1].fields, _rank(call)) and isinstance(call.args[0], relax.Var)


def _has_batch_first(call: Any) -> bool:
    return str(call.attrs.layout)[0] == "N"


_POOLS = [
    f"relax.nn.{kind}{axes}d"
    for kind in ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool")
    for axes in (1, 2, 3)
]
_REDUCTIONS = [f"relax.{name}" for name in ("sum", "mean", "max", "min", "prod", "variance", "std")]
_MOVES = {"relax.nn.pad", "relax.concat", "relax.strided_slice", "relax.permute_dims", "relax.reshape"}

# By operator, whether a call computes each element of the batch alone.
_SEPARATE: Mapping[str, Callable[[Any], bool]] = {
    **{f"relax.nn.conv{axes}d": _has_constant_weights for axes in (1, 2, 3)},
    **{f"relax.nn.conv{axes}d_transpose": _has_constant_weights for axes in (1, 2, 3)},
    **dict.fromkeys(_POOLS, _has_batch_first),
    **dict.fromkeys(_REDUCTIONS, _axes_elsewhere),
    "relax.concat": lambda call: (
        _leaves_batch([call.attrs.axis], len(shape_of(call)))
        and all(isinstance(item, relax.Var) for item in call.args[0].fields)
    ),
    "relax.image.resize2d": _has_batch_first,
    "relax.matmul": _is_matmul_of_elements,
    "relax.nn.layer_norm": _normalises_elsewhere,
    "relax.nn.log_softmax": _axis_elsewhere,
    "relax.nn.pad": _pads_elsewhere,
    "relax.nn.rms_norm": _normalises_elsewhere,
    "relax.nn.softmax": _axis_elsewhere,
    "relax.permute_dims": _keeps_batch_axis,
    "relax.reshape": lambda call: True,  # operands have the batch as axis 0, too
    "relax.strided_slice": _slices_elsewhere,
}
