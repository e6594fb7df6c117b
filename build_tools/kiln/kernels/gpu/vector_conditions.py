"""Vectors with conditions: those that TVM writes as wrong CUDA C are computed element by element.

CUDA has no vectors of booleans. TVM 0.27 writes them as `ushort2` to `ushort4`, also where it loads them from
memory, in which a boolean has one byte: each element is then made of two booleans. A condition that is the
same for all elements becomes such a vector as well, but is declared with the type of the values that it
selects, which nvcc rejects. Correct is only a comparison of numbers that differs from element to element.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import TensorLoad
from tvm.tirx.analysis import undefined_vars

from kiln.callbacks import structural_map, structural_walk

_COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)


def without_vector_conditions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Unroll the vectorised loops of a function that have a condition which TVM writes wrongly."""

    def on_loop(loop: Any) -> Any:
        if int(loop.kind) != tirx.ForKind.VECTORIZED or _is_correct(loop):
            return loop
        return tirx.For(
            loop.loop_var, loop.min, loop.extent, tirx.ForKind.UNROLLED, loop.body, None, loop.annotations
        )

    return func.with_body(structural_map(func.body, [(tirx.For, on_loop)]))


def _is_correct(loop: Any) -> bool:
    """Whether the body of a vectorised loop has numbers and comparisons between them only."""
    wrong: list[Any] = []

    def on_boolean(node: Any) -> None:
        value = node.value if isinstance(node, tirx.BufferStore) else node
        if str(value.ty.dtype) == "bool":
            wrong.append(node)

    def on_choice(node: Any) -> None:
        if not isinstance(node.condition, _COMPARISONS) or not _varies(node.condition, loop.loop_var):
            wrong.append(node)

    structural_walk(
        loop.body, [(TensorLoad, on_boolean), (tirx.BufferStore, on_boolean), (tirx.Select, on_choice)]
    )
    return not wrong


def _varies(expr: Any, variable: Any) -> bool:
    return any(used.same_as(variable) for used in undefined_vars(expr))
