"""math.ceil, math.floor and math.trunc of dynamic sizes, and abs, by operations of integers.

An example is ceil(n / 8) * 8. torch.export writes them into a program; torch.export.save refuses all but
trunc. Quotients of integers, plus or minus integers, and multiples by fractions such as 0.75 are replaced:
others ONNX computes in float32 and Python in float64, with different sizes (trunc(0.29 * 100) is 29 and 28).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kiln.errors import KilnError

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_NUMBERS = (operator.truediv, operator.mul, operator.add, operator.sub)
_BITS = 20  # of a fraction's numerator and denominator: products with sizes are exact in float64


def without_rounding(program: ExportedProgram) -> None:
    """Replace floor(a / b) in `program` by a // b, ceil(a / b) by -(-a // b), and abs(a) by max(a, -a).

    trunc is one of the two, by the sign of a / b. Raises KilnError for other numbers that are rounded, for
    trunc of a number whose sign is not known, and for round.
    """
    graphs = [module.graph for module in program.graph_module.modules() if hasattr(module, "graph")]
    for graph in graphs:
        for node in list(graph.nodes):
            if node.op == "call_function" and node.target in (abs, operator.abs):
                with graph.inserting_before(node):
                    node.replace_all_uses_with(_magnitude(graph, node.args[0]))
                graph.erase_node(node)
            elif node.op == "call_function" and (
                node.target in (math.ceil, math.floor, round) or _is_trunc(node)
            ):
                with graph.inserting_before(node):
                    node.replace_all_uses_with(_rounded(graph, node))
                _erase(graph, node)
    program.graph_module.recompile()


def _is_trunc(node: Any) -> bool:
    """Whether `node` cuts off the digits of a number behind the point; sym_int also takes integers."""
    import torch

    if node.target not in (math.trunc, torch.sym_int):
        return False
    return not isinstance(_value(node.args[0]), (int, torch.SymInt))


def _rounded(graph: Any, node: Any) -> Any:
    """The node that computes what `node`, a rounding, does."""
    quotient = None if node.target is round else _quotient(graph, node.args[0])
    if quotient is None:
        raise KilnError(
            f"{node.target.__name__} of a number that is computed from a dynamic size: compute the size with "
            "integers, such as -(-n // 8) in place of math.ceil(n / 8), or (3 * n) // 10 of int(0.3 * n)"
        )
    top, bottom = quotient
    if node.target is math.floor or (node.target is not math.ceil and _is_positive(node)):
        return _call(graph, operator.floordiv, top, bottom)
    below = _call(graph, operator.floordiv, _call(graph, operator.neg, top), bottom)
    return _call(graph, operator.neg, below)


def _is_positive(node: Any) -> bool:
    """Whether the argument of a trunc is 0 or more. Raises KilnError where its sign is not known."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    value = _value(node.args[0])
    is_positive = bool(statically_known_true(value >= 0))
    if not is_positive and not statically_known_true(value <= 0):
        raise KilnError(
            "trunc of a number that is computed from a dynamic size and may be negative: use math.floor or "
            "math.ceil"
        )
    return is_positive


def _magnitude(graph: Any, number: Any) -> Any:
    """The node that computes the absolute value of `number`."""
    import torch

    return _call(graph, torch.sym_max, number, _call(graph, operator.neg, number))


def _quotient(graph: Any, number: Any) -> tuple[Any, Any] | None:
    """The integers a and b of a number that is a / b, as nodes or numbers; None for one of another form."""
    import torch

    value = _value(number)
    if isinstance(value, (int, torch.SymInt)):
        return number, 1
    if isinstance(value, float):
        return _fraction(value)
    if number.target is torch.sym_float:
        return _quotient(graph, number.args[0])
    if number.target not in _NUMBERS:
        return None
    left, right = (_quotient(graph, operand) for operand in number.args)
    return None if left is None or right is None else _combined(graph, number.target, left, right)


def _combined(
    graph: Any, function: Callable[..., Any], left: tuple[Any, Any], right: tuple[Any, Any]
) -> tuple[Any, Any] | None:
    """The quotient that one of _NUMBERS makes of two quotients; None where float64 would round on the way."""
    (a, b), (c, d) = left, right
    if function is operator.mul:  # float64 rounds n / 3 before it multiplies it
        is_exact = _is_power_of_two(b) and _is_power_of_two(d)
        return (_call(graph, operator.mul, a, c), b * d) if is_exact else None
    if function is operator.truediv:
        return (a, _call(graph, operator.mul, b, c)) if d == 1 else None
    if b != 1 and d != 1:
        return None
    a, c = _call(graph, operator.mul, a, d), _call(graph, operator.mul, c, b)
    return _call(graph, function, a, c), d if b == 1 else b


def _fraction(value: float) -> tuple[int, int] | None:
    """The numerator and denominator of a number; None for one of more than _BITS bits, and for infinity."""
    top, bottom = value.as_integer_ratio() if math.isfinite(value) else (1 << _BITS, 1)
    return (top, bottom) if max(top.bit_length(), bottom.bit_length()) <= _BITS else None


def _is_power_of_two(divisor: Any) -> bool:
    return isinstance(divisor, int) and divisor > 0 and divisor & (divisor - 1) == 0


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
    import torch

    operands = node.all_input_nodes
    graph.erase_node(node)
    for operand in operands:
        if (
            not operand.users
            and operand.op == "call_function"
            and operand.target in (*_NUMBERS, torch.sym_float)
        ):
            _erase(graph, operand)
