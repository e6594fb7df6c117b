"""Sizes that a function's code uses, bound to the sizes of its tensors.

TVM 0.27 gives a function from `emit_te` variables of its own for the sizes in the shapes of its operands. A
size that the code itself uses, such as the length of an axis where an index wraps around, stays the variable
of the graph: unless the result has an axis of that size, nothing binds it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import SBlock

from kiln.callbacks import structural_map, structural_walk


def bind_sizes(module: tvm.IRModule) -> tvm.IRModule:
    """`module`, where each function reads the sizes that it uses from the shapes of its tensors.

    Sizes are found by name: a graph has one size of a name.
    """
    for variable, func in list(module.functions_items()):
        if not isinstance(func, tirx.PrimFunc):
            continue
        sizes = {var.name: var for var in _sizes(func)}
        inner = _indices(func)
        free = [
            var
            for var in tirx.analysis.undefined_vars(func.body, list(func.params))
            if var.name in sizes and not var.same_as(sizes[var.name]) and not _among(var, inner)
        ]
        if free:
            body = structural_map(func.body, ((tirx.Var, partial(_bound, free, sizes)),))
            module.update_func(variable, func.with_body(body))
    return module


def _bound(free: list[Any], sizes: dict[str, Any], var: Any) -> Any:
    return sizes[var.name] if _among(var, free) else var


def _among(var: Any, items: list[Any]) -> bool:
    return any(var.same_as(item) for item in items)


def _sizes(func: tirx.PrimFunc) -> list[Any]:
    """The variables in the shapes of a function's tensors, and its parameters that are sizes."""
    variables: list[Any] = []
    for param in func.params:
        if not tirx.is_buffer_var(param):
            variables.append(param)
            continue
        for size in param.shape:
            structural_walk(size, ((tirx.Var, variables.append),))
    return variables


def _indices(func: tirx.PrimFunc) -> list[Any]:
    """The variables that blocks of code define: their own indices."""
    indices: list[Any] = []
    structural_walk(
        func.body, ((SBlock, lambda block: indices.extend(item.var for item in block.iter_vars)),)
    )
    return indices
