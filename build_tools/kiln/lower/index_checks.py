"""Steps that check indices before an operator reads or writes with them.

With `checks: indices` every tensor of indices is checked against the size of the axis that it indexes. A run
ends with KILN_BAD_INDEX at the first index out of range. Without that key only indices along an axis that may
be empty are checked: other indices are clamped or dropped (kernels/operators/indices.py), but an empty axis
has no element to clamp to.

A check is a call of `CHECK` on the indices. Its result is the same indices, which the operator then reads, so
that the check runs before the operator. Constant indices are checked here, at build time.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from kiln.config import sizes
from kiln.errors import KilnError
from kiln.extents import shape_of
from kiln.graph.bindings import CallRewriter, constant, operator, rewrite_calls
from kiln.lower.dims import Dims
from kiln.tir.symbols import product

CHECK = "kiln.check_indices "  # and a JSON object: op, axis, wraps
_READS = ("relax.take", "relax.gather_elements", "relax.gather_nd")
_WRITES = ("relax.scatter_elements", "relax.scatter_nd")


@dataclass(frozen=True)
class _Indices:
    """A tensor of indices as the model has it (`raw`), before the importer converts it for the operator.

    `wraps`: negative indices count from the end. `rebuilt`: converts the checked tensor for the operator.
    """

    raw: Any
    wraps: bool
    rebuilt: Callable[[Any], Any]


def index_checks(model: str, checks_all: bool, gpu: bool = False) -> Callable[[tvm.IRModule], tvm.IRModule]:
    """Add checks of indices that come from data.

    `checks_all`: the model has `checks: indices`. `gpu`: kernels run on a GPU, where there are no checks.
    Raises KilnError for a constant index outside of its axis, and where a GPU would need a check.
    """

    def run(mod: tvm.IRModule) -> tvm.IRModule:
        dims = Dims(model, mod)

        def rule(rewriter: CallRewriter, call: Any) -> Any:
            axes = _axes(call)
            if not checks_all and not any(_may_be_empty(dims, size) for size in axes.values()):
                return None
            if not checks_all and operator(call) in _WRITES:
                return None
            name = str(operator(call)).removeprefix("relax.")
            index_form = _indices(rewriter, call.args[1])
            value = constant(index_form.raw)
            if value is not None and all(isinstance(size, int) for size in axes.values()):
                _check_constant(f"{model}: operator '{name}'", value, axes, index_form.wraps)
                return None
            if gpu:
                raise KilnError(
                    f"{model}: operator '{name}': its indices have to be checked (checks: indices, or an "
                    "axis that may be empty), but kernels on a GPU cannot check them"
                )
            checked = _check(rewriter, name, index_form, axes)
            return relax.Call(
                call.op, [call.args[0], index_form.rebuilt(checked), *call.args[2:]], call.attrs, call.ty_args
            )

        checked_mod = rewrite_calls(mod, dict.fromkeys((*_READS, *_WRITES), rule))
        # Removes the conversions of unchecked indices.
        return relax.transform.DeadCodeElimination()(checked_mod)

    return run


def _axes(call: Any) -> dict[int, Any]:
    """Sizes of the axes of the data that `call` indexes, by axis; -1: all axes flattened into one."""
    shape = shape_of(call.args[0])
    name = operator(call)
    if name in ("relax.gather_nd", "relax.scatter_nd"):
        first = int(call.attrs.batch_dims) if name == "relax.gather_nd" else 0
        count = int(call.args[1].ty.shape[-1])
        return {axis: shape[axis] for axis in range(first, first + count)}
    if call.attrs.axis is None:
        return {-1: product(shape)}
    axis = int(call.attrs.axis) % len(shape)
    return {axis: shape[axis]}


def _may_be_empty(dims: Dims, size: Any) -> bool:
    """Whether a size can be 0; True for a size that cannot be computed."""
    if isinstance(size, int):
        return size == 0
    try:
        return sizes.bounds(dims.size(size), dims.box)[0] < 1
    except ValueError:
        return True


def _indices(rewriter: CallRewriter, expr: relax.Expr) -> _Indices:
    """`expr` as `_Indices`: without the casts and the handling of negative indices that are recognised.

    Negative indices are handled as where(i < 0, i + size, i).
    """
    definition = rewriter.definition(expr)
    if operator(definition) == "relax.astype" and str(definition.args[0].ty.dtype) in ("int32", "int64"):
        inner = _indices(rewriter, definition.args[0])
        dtype = str(definition.ty.dtype)
        return _Indices(
            inner.raw, inner.wraps, lambda value: rewriter.emit(relax.op.astype(inner.rebuilt(value), dtype))
        )
    if operator(definition) == "relax.where":
        less, added = (rewriter.definition(operand) for operand in definition.args[:2])
        same = definition.args[2]
        if (
            operator(less) == "relax.less"
            and operator(added) == "relax.add"
            and less.args[0].same_as(same)
            and added.args[0].same_as(same)
            and (bound := constant(less.args[1])) is not None
            and not np.any(bound)
        ):
            size = added.args[1]

            def counted(value: Any) -> Any:
                negative = rewriter.emit(relax.op.less(value, less.args[1]))
                from_end = rewriter.emit(relax.op.add(value, size))
                return rewriter.emit(relax.op.where(negative, from_end, value))

            return _Indices(same, True, counted)
    return _Indices(expr, False, lambda value: value)


def _check_constant(what: str, values: Any, axes: dict[int, int], wraps: bool) -> None:
    """Raise KilnError for the first constant index that is outside of its axis."""
    columns = values.reshape(-1, len(axes)) if len(axes) > 1 else values.reshape(-1, 1)
    for column, (axis, size) in zip(columns.T, axes.items(), strict=True):
        low = -size if wraps else 0
        outside = column[(column < low) | (column >= size)]
        if outside.size:
            raise KilnError(f"{what}: index {outside[0]} of axis {axis}, allowed {low}..{size - 1}")


def _check(rewriter: CallRewriter, name: str, index_form: _Indices, axes: dict[int, Any]) -> Any:
    """Add a check for each axis of `axes`; returns the checked indices."""
    value = index_form.raw
    if str(value.ty.dtype) not in ("int32", "int64"):
        value = rewriter.emit(relax.op.astype(value, "int64"))
    columns = len(axes)
    rows = product(shape_of(value)[:-1]) if name.endswith("_nd") else product(shape_of(value))
    for first, (axis, size) in enumerate(axes.items()):
        about = {"op": name, "axis": axis, "wraps": index_form.wraps}
        numbers = relax.ShapeExpr([_number(n) for n in (rows, columns, first, size)])
        value = rewriter.emit(relax.op.call_dps_packed(CHECK + json.dumps(about), [value, numbers], value.ty))
    return value


def _number(size: Any) -> Any:
    return tirx.IntImm("int64", size) if isinstance(size, int) else size
