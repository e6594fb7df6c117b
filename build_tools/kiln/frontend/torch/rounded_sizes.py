"""math.ceil and math.floor of dynamic sizes, as in ceil(n / 8) * 8, by divisions of integers.

torch.export writes both into a program, which torch.export.save then refuses. Quotients of integers, plus or
minus integers, are replaced: others ONNX computes in float32 and Python in float64, with different sizes.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kiln.errors import KilnError

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_NUMBERS = (operator.truediv, operator.add, operator.sub)


def without_rounding(program: ExportedProgram) -> None:
    """Replace the two functions in `program`, floor(a / b) by a // b and ceil(a / b) by -(-a // b).

    Raises KilnError for other numbers that are rounded, and for round.
    """
    graphs = [module.graph for module in program.graph_module.modules() if hasattr(module, "graph")]
    for graph in graphs:
        for node in list(graph.nodes):
            if node.target in (math.ceil, math.floor, round):
                with graph.inserting_before(node):
                    node.replace_all_uses_with(_rounded(graph, node))
                _erase(graph, node)
    program.graph_module.recompile()


def _rounded(graph: Any, node: Any) -> Any:
    """The node that computes what `node`, a rounding, does."""
    quotient = None if node.target is round else _quotient(graph, node.args[0])
    if quotient is None:
        raise KilnError(
            f"{node.target.__name__} of a number that is computed from a dynamic size: compute the size with "
            "integers, such as -(-n // 8) in place of math.ceil(n / 8), or (3 * n) // 10 of int(0.3 * n)"
        )
    top, bottom = quotient
    if node.target is math.floor:
        return _call(graph, operator.floordiv, top, bottom)
    below = _call(graph, operator.floordiv, _call(graph, operator.neg, top), bottom)
    return _call(graph, operator.neg, below)


def _quotient(graph: Any, number: Any) -> tuple[Any, Any] | None:
    """The integers a and b of a number that is a / b, as nodes or numbers; None for one of another form."""
    import torch

    value = _value(number)
    if isinstance(value, (int, torch.SymInt)):
        return number, 1
    if isinstance(value, float):
        return (int(value), 1) if value.is_integer() else None
    if number.target is torch.sym_float:
        return _quotient(graph, number.args[0])
    if number.target not in _NUMBERS:
        return None
    left, right = (_quotient(graph, operand) for operand in number.args)
    if left is None or right is None:
        return None
    (a, b), (c, d) = left, right
    if number.target is operator.truediv:
        return (a, _call(graph, operator.mul, b, c)) if d == 1 else None
    if b != 1 and d != 1:
        return None
    a, c = _call(graph, operator.mul, a, d), _call(graph, operator.mul, c, b)
    return _call(graph, number.target, a, c), d if b == 1 else b


def _call(graph: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function of integers: a number, or a node."""
    value = function(*map(_value, arguments))
    if isinstance(value, int):
        return value
    node = graph.call_function(function, arguments)
    node.meta["val"] = value
    return node


def _value(argument: Any) -> Any:
    """The size that a node stands for; numbers are themselves."""
    return argument.meta["val"] if hasattr(argument, "meta") else argument


def _erase(graph: Any, node: Any) -> None:
    """Erase a node, and the operands of numbers that nothing else reads."""
    operands = node.all_input_nodes
    graph.erase_node(node)
    for operand in operands:
        if not operand.users and operand.op == "call_function" and operand.target in _NUMBERS:
            _erase(graph, operand)
