"""Size expressions as C in 32-bit arithmetic, for which 32-bit processors need no library functions."""

from __future__ import annotations

from collections.abc import Mapping

from kiln.config import sizes
from kiln.config.records import INT32_MAX
from kiln.errors import KilnError


def size_bounds(expr: sizes.SizeExpr, box: Mapping[str, tuple[int, int]], where: str) -> tuple[int, int]:
    """Least and greatest value of `expr` over the ranges in `box`.

    Raises KilnError for a dimension that is not in `box`, a subexpression whose values exceed 32 bits, and a
    divisor that can be 0 or less. `where`: the expression's place in plan.json, for the message.
    """
    for name in sorted(sizes.names(expr) - set(box)):
        raise KilnError(
            f"plan.json: {where}: dimension '{name}', allowed: {', '.join(box) or 'numbers only'}"
        )
    # A quotient by 0 has no bounds, so a divisor is checked before the expression that it divides.
    for node in reversed(list(sizes.parts(expr))):
        if not isinstance(node, int | str) and node[0] in ("//", "%"):
            least = sizes.bounds(node[2], box)[0]
            if least < 1:
                raise KilnError(
                    f"plan.json: {where}: {sizes.show(node)}: divisor from {least}, allowed from 1"
                )
        low, high = sizes.bounds(node, box)
        if low < -INT32_MAX or high > INT32_MAX:
            raise KilnError(
                f"plan.json: {where}: {sizes.show(node)}: {low}..{high}, allowed {-INT32_MAX}..{INT32_MAX}"
            )
    return low, high


class SizeCode:
    """Translates size expressions to C; collects in `lines` the statements that must precede them.

    `dims`: the C expression, of type int32_t, of each dimension; `box`: its least and greatest size.
    An operand that the C text repeats (min, max) becomes a constant in `lines`, so that the text does not
    grow exponentially.
    """

    def __init__(self, dims: Mapping[str, str], box: Mapping[str, tuple[int, int]]) -> None:
        self.lines: list[str] = []
        self._dims, self._box = dims, box
        self._names: dict[str, str] = {}

    def value(self, expr: sizes.SizeExpr, where: str) -> str:
        """The C expression, of type int32_t, of `expr`. Raises KilnError as size_bounds does."""
        size_bounds(expr, self._box, where)
        return _bare(self._text(expr))

    def _text(self, expr: sizes.SizeExpr) -> str:
        if isinstance(expr, int):
            return str(expr) if expr >= 0 else f"({expr})"
        if isinstance(expr, str):
            return self._dims[expr]
        operator, left, right = expr
        if operator in ("min", "max"):
            a, b = self._named(left), self._named(right)
            return f"({a} {'<' if operator == 'min' else '>'} {b} ? {a} : {b})"
        a, b = self._text(left), self._text(right)
        if operator not in ("//", "%"):
            return f"({a} {operator} {b})"
        # C rounds towards 0, and not every processor has an instruction to divide by a variable.
        if isinstance(right, int) and sizes.bounds(left, self._box)[0] >= 0:
            return f"({a} {operator[0]} {b})"
        return f"kiln_{'quotient' if operator == '//' else 'remainder'}({_bare(a)}, {_bare(b)})"

    def _named(self, expr: sizes.SizeExpr) -> str:
        """C text of `expr` that may be repeated: a constant in `lines` unless `expr` is a leaf."""
        text = self._text(expr)
        if isinstance(expr, int | str):
            return text
        if text not in self._names:
            self._names[text] = f"size_{len(self.lines)}"
            self.lines.append(f"const int32_t {self._names[text]} = {_bare(text)};")
        return self._names[text]


def _bare(text: str) -> str:
    """`text` without outer parentheses, for an argument or an initialiser."""
    depth = 0
    for index, letter in enumerate(text):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth == 0:
            return text[1:-1] if index == len(text) - 1 and text.startswith("(") else text
    return text
