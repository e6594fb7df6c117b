"""Pieces of an axis in which the conditions of an expression do not change, such as the operands of a concat.

An element of a concat is chosen by conditions on its index, one for each operand. Vectors across such a
condition become a branch and a load for each lane: 10 ns for each element of a concat of 16 operands. Within
the piece of one operand there is no condition, and vectors load as from any tensor.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from typing import Any

import tvm
from tvm import sym, tirx
from tvm.ir import Call, Expr

from kiln.callbacks import structural_map, structural_walk
from kiln.tir.inline import Expanded
from kiln.tir.op_names import op_name

# Each piece has its own loop in the code: more of them must fill half a vector on average.
_FEW = 8
_COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE)


@dataclass(frozen=True)
class Piece:
    """The elements from `begin` to `end` of an axis, and how each is computed there."""

    begin: int
    end: int
    expanded: Expanded


def pieces_of(expanded: Expanded, axis: Any, length: int, lanes: int) -> list[Piece]:
    """The pieces of an axis of `length` elements, in order; the whole axis where it has too many short ones.

    `expanded`: the expression of an element. `lanes`: elements of a vector.
    """
    bounds = [0, *sorted(_bounds(expanded.expressions, axis.var, length)), length]
    count = len(bounds) - 1
    if count == 1 or (count > _FEW and count * lanes > 2 * length):
        return [Piece(0, length, expanded)]
    return [
        Piece(begin, end, _within(expanded, axis.var, begin, end))
        for begin, end in itertools.pairwise(bounds)
    ]


def _bounds(expressions: Sequence[Expr], variable: Any, length: int) -> set[int]:
    """The indices within an axis at which a condition on it alone begins or ceases to hold."""
    found: set[int] = set()

    def on_comparison(node: Any) -> None:
        begin = _first_after(node, variable)
        if begin is not None and 0 < begin < length:
            found.add(begin)

    def on_condition(condition: Expr) -> None:
        structural_walk(condition, ((_COMPARISONS, on_comparison),))

    def on_call(call: Call) -> None:
        if op_name(call) == "if_then_else":
            on_condition(call.args[0])

    rules = ((Call, on_call), (tirx.Select, lambda node: on_condition(node.condition)))
    for expression in expressions:
        structural_walk(expression, rules)
    return found


def _first_after(comparison: Any, variable: Any) -> int | None:
    """The first value of `variable` for which a comparison differs from its result for lower ones.

    None unless the comparison is that of the variable, with an integer added or not, and an integer.
    """
    left, right = comparison.a, comparison.b
    turned = isinstance(left, tirx.IntImm)
    if turned:
        left, right = right, left
    added = 0
    if isinstance(left, tirx.Add | tirx.Sub) and isinstance(left.b, tirx.IntImm):
        added = int(left.b.value) if isinstance(left, tirx.Add) else -int(left.b.value)
        left = left.a
    if not variable.same_as(left) or not isinstance(right, tirx.IntImm):
        return None
    includes = isinstance(comparison, tirx.LT | tirx.GE) != turned  # x < b and x >= b change at b itself
    return int(right.value) - added + (not includes)


def _within(expanded: Expanded, variable: Any, begin: int, end: int) -> Expanded:
    """`expanded` for values of `variable` from `begin` to `end`, without the conditions that they decide."""
    analyzer = sym.Analyzer()
    dtype = str(variable.ty.dtype)
    analyzer.bind(variable, tvm.ir.Range(tirx.const(begin, dtype), tirx.const(end, dtype)))

    def chosen(condition: Expr, yes: Expr, no: Expr, otherwise: Any) -> Any:
        decided = analyzer.simplify(condition)
        return (yes if int(decided.value) else no) if isinstance(decided, tirx.IntImm) else otherwise

    def on_call(call: Call) -> Any:
        if op_name(call) != "if_then_else":
            return call
        condition, yes, no = call.args
        return chosen(condition, yes, no, call)

    def on_select(node: Any) -> Any:
        return chosen(node.condition, node.true_value, node.false_value, node)

    def decided(value: Expr) -> Any:
        return structural_map(value, ((Call, on_call), (tirx.Select, on_select)))

    steps = [replace_fields(step, value=decided(step.value)) for step in expanded.steps]
    return Expanded(steps, decided(expanded.value))
