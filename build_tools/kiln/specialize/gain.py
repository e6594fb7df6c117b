"""Heuristic: whether a function specialised to the content of an input does less than the general one."""

from __future__ import annotations

from typing import Any

from tvm import relax

from kiln.graph.bindings import operator

# Operators that are not counted as work: they change a shape, or create a tensor without reading one.
_FREE = {
    f"relax.{name}"
    for name in ("reshape", "expand_dims", "squeeze", "flatten", "full", "zeros", "ones", "arange")
}


def gains(special: Any, general: Any) -> bool:
    """Whether `special` has fewer operators than `general`, or equally many that read fewer tensors."""
    return _work(special) < _work(general)


def _work(function: Any) -> tuple[int, int]:
    """The number of operators of a function, and the number of tensors that the operators read."""
    operators, operands = 0, 0
    definitions = {}
    for block in function.body.blocks:
        for binding in block.bindings:
            definitions[binding.var] = binding.value
            if not isinstance(binding.value, relax.Call) or operator(binding.value) in _FREE:
                continue
            operators += 1
            operands += sum(_is_read(argument, definitions) for argument in binding.value.args)
    return operators, operands


def _is_read(expr: relax.Expr, definitions: dict[Any, Any]) -> bool:
    """Whether an operand is a tensor with axes that is read from memory.

    The results of full, zeros and ones are not: the reading kernel uses a scalar in their place.
    """
    ty = expr.ty
    if not isinstance(ty, relax.TensorType) or not len(ty.shape):
        return False
    return operator(definitions.get(expr, expr)) not in ("relax.full", "relax.zeros", "relax.ones")
