"""Legalisation of relax.max, relax.min and relax.full where infinities occur.

TVM 0.27 reduces from the greatest finite number, which is the wrong result where all elements are infinite,
and has an error for tensors full of infinities or NaN. `register` replaces its rules, as constants are folded
by the rules of operators.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.ir import Op

from kiln.graph.bindings import constant


def extreme(largest: bool) -> Callable[[Any, Any], Any]:
    """The rule of relax.max (`largest`) or relax.min, which starts from the infinity of the other sign."""
    name = "max" if largest else "min"
    original = Op.get(f"relax.{name}").get_attr("FLegalize")
    choose = tirx.max if largest else tirx.min

    def rule(builder: Any, call: Any) -> Any:
        dtype = str(call.ty.dtype)
        if not dtype.startswith("float"):
            return original(builder, call)
        reducer = te.comm_reducer(
            lambda a, b: choose(a, b),
            lambda _: tirx.FloatImm(dtype, -math.inf if largest else math.inf),
            name=name,
        )

        def compute(data: Any) -> Any:
            rank, keep = len(data.shape), bool(call.attrs.keepdims)
            attribute = call.attrs.axis
            over = range(rank) if attribute is None else [int(axis) % rank for axis in attribute]
            reduced = {axis: te.reduce_axis((0, data.shape[axis]), f"k{axis}") for axis in sorted(over)}
            kept_axes = [axis for axis in range(rank) if keep or axis not in reduced]
            shape = [1 if axis in reduced else data.shape[axis] for axis in kept_axes]

            def element(*indices: Any) -> Any:
                index_of_axis = dict(zip(kept_axes, indices, strict=True))
                where = [
                    reduced[axis].var if axis in reduced else index_of_axis[axis] for axis in range(rank)
                ]
                return reducer(data[tuple(where)], axis=list(reduced.values()))

            return te.compute(shape, element, name=name)

        return builder.call_te(compute, call.args[0], primfunc_name_hint=name)

    return rule


def _full(original: Any) -> Callable[[Any, Any], Any]:
    """The rule of relax.full; `original`: TVM's."""

    def rule(builder: Any, call: Any) -> Any:
        value = constant(call.args[1])
        if value is None or value.dtype.kind != "f" or np.isfinite(value).all():
            return original(builder, call)
        dtype, number = str(call.ty.dtype), float(value.reshape(-1)[0])

        def compute() -> Any:
            return te.compute(list(call.ty.shape), lambda *_: tirx.FloatImm(dtype, number), name="full")

        return builder.call_te(compute, primfunc_name_hint="full")

    return rule


@functools.cache
def register() -> None:
    """Register the rules of this file as the legalisation rules of relax.max and relax.min."""
    for name, largest in (("max", True), ("min", False)):
        Op.get(f"relax.{name}").set_attr("FLegalize", extreme(largest), 11)
    full = Op.get("relax.full")
    full.set_attr("FLegalize", _full(full.get_attr("FLegalize")), 11)
