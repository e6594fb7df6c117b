"""Binds each dynamic size of a kernel to a variable, after the passes that use its range.

A size is a parameter that is clamped to its range (kiln.tir.builder.define), and the clamp stands wherever
the size is read, so that TVM's passes know the range. CommonSubexprElim of TVM 0.27 compares all parts of all
expressions, and takes two thirds of its time for a network of convolutions once the clamps are gone.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from kiln.callbacks import structural_map


def bind_sizes(func: tirx.PrimFunc, *_: Any) -> tirx.PrimFunc:
    """`func` with one variable, bound at its top, for each clamp of a scalar parameter to constants."""
    scalars = {param for param in func.params if str(param.ty) in ("int32", "int64")}
    if not scalars:
        return func
    variables: dict[tuple[Any, ...], Any] = {}
    bindings: list[Any] = []

    def on_max(node: Any) -> Any:
        inner, least = node.a, node.b
        if not isinstance(least, tirx.IntImm) or not isinstance(inner, tirx.Min):
            return node
        size = inner.a.value if isinstance(inner.a, tirx.Cast) else inner.a
        if not isinstance(inner.b, tirx.IntImm) or size not in scalars:
            return node
        key = size, str(node.ty.dtype), int(inner.b), int(least)
        if key not in variables:
            variables[key] = tirx.Var(size.name, key[1])
            bindings.append(tirx.Bind(variables[key], node))
        return variables[key]

    body = structural_map(func.body, ((tirx.Max, on_max),))
    return func.with_body(tirx.SeqStmt([*bindings, body])) if bindings else func
