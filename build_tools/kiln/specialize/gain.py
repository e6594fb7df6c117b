"""Whether a function that was made for a content of an input has less to do than the one for any content."""

from __future__ import annotations

from typing import Any

from tvm import relax

from kiln.graph.bindings import operator

# They compute nothing: another shape, or a tensor out of no other.
_FREE = {
    f"relax.{name}"
    for name in ("reshape", "expand_dims", "squeeze", "flatten", "full", "zeros", "ones", "arange")
}


def gains(special: Any, general: Any) -> bool:
    """Whether `special` has fewer operators, or as many that read fewer tensors."""
    return _work(special) < _work(general)


def _work(function: Any) -> tuple[int, int]:
    """The operators of a function, and the tensors that they read."""
    operators, operands = 0, 0
    made = {}
    for block in function.body.blocks:
        for binding in block.bindings:
            made[binding.var] = binding.value
            if not isinstance(binding.value, relax.Call) or operator(binding.value) in _FREE:
                continue
            operators += 1
            operands += sum(_is_read(argument, made) for argument in binding.value.args)
    return operators, operands


def _is_read(expr: Any, made: dict[Any, Any]) -> bool:
    """Whether an operand is a tensor with axes that lies in memory: a filled one is a number to readers."""
    ty = expr.ty
    if not isinstance(ty, relax.TensorType) or not len(ty.shape):
        return False
    return operator(made.get(expr, expr)) not in ("relax.full", "relax.zeros", "relax.ones")
