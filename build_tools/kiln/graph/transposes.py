"""CancelTransposes: remove transposes that move no data, and pairs of transposes that cancel out.

A transpose that only moves axes of size 1 becomes a reshape, which costs nothing; two consecutive transposes
become one, and so do two reshapes. Guarantees: results and shapes are unchanged.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from kiln.graph.bindings import CallRewriter, integers, operator, rewrite_calls, static_shape


def _axes(call: relax.Call) -> list[int]:
    rank = len(call.ty.shape)
    if call.attrs.axes is None:
        return list(range(rank))[::-1]
    return [axis % rank for axis in integers(call.attrs.axes)]


def padded(call: relax.Call, data: Any, axes: list[int]) -> Any:
    """`data` with the padding of `call`, where the data of `call` are the transpose of `data` to `axes`."""
    widths = integers(call.attrs.pad_width)
    moved = [0] * len(widths)
    for position, axis in enumerate(axes):
        moved[2 * axis : 2 * axis + 2] = widths[2 * position : 2 * position + 2]
    return relax.op.nn.pad(data, moved, str(call.attrs.pad_mode), float(call.attrs.pad_value))


def _is_static(expr: relax.Expr) -> bool:
    return all(isinstance(size, tvm.tirx.IntImm) for size in expr.ty.shape)


def _transpose(rewriter: CallRewriter, call: relax.Call) -> Any:
    data, axes = call.args[0], _axes(call)
    inner = rewriter.definition(data)
    if operator(inner) == "relax.permute_dims":
        first = _axes(inner)
        axes, data = [first[axis] for axis in axes], inner.args[0]
    if axes == sorted(axes):
        return data
    if _is_static(data):
        sizes = static_shape(data)
        moved = [axis for axis in axes if sizes[axis] != 1]
        if moved == sorted(moved):
            return relax.op.reshape(data, [sizes[axis] for axis in axes])
    return relax.op.permute_dims(data, axes)


def _reshape(rewriter: CallRewriter, call: relax.Call) -> Any:
    data = call.args[0]
    inner = rewriter.definition(data)
    if operator(inner) == "relax.reshape":
        data = inner.args[0]
    if _is_static(call) and _is_static(data) and static_shape(call) == static_shape(data):
        return data
    return relax.op.reshape(data, call.args[1])


def cancel_transposes(mod: tvm.IRModule) -> tvm.IRModule:
    """Merge and remove transposes and reshapes."""
    return rewrite_calls(mod, {"relax.permute_dims": _transpose, "relax.reshape": _reshape})
