"""TIR expressions of sizes as size expressions (kiln.config.sizes)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tvm import tirx

from kiln.config.sizes import SizeExpr

_OPERATORS = {
    tirx.Add: "+",
    tirx.Sub: "-",
    tirx.Mul: "*",
    tirx.FloorDiv: "//",
    tirx.FloorMod: "%",
    tirx.Min: "min",
    tirx.Max: "max",
}
# A variable for size / m as TVM prints it, with its name from kiln.frontend.symbols.
_PART = re.compile(r"\b(\w+?)_div(\d+)(?: \* T\.int64\((\d+)\))?")


def part_of(dim: str, divide: int) -> SizeExpr:
    """The size expression `dim` / `divide`, the value of a variable for a divided dimension."""
    return dim if divide == 1 else ["//", dim, divide]


def to_size(expr: Any, values: Mapping[Any, SizeExpr], multiples: Mapping[str, int]) -> SizeExpr:
    """Convert a TIR expression to a size expression of the model's dimensions, with positive divisors.

    `values`: by variable, its size expression. `multiples`: by dimension, the number of which every size is
    a multiple. Raises ValueError for an unknown variable and for an operator that size expressions lack.
    """
    if isinstance(expr, (int, tirx.IntImm)):
        return int(expr)
    if isinstance(expr, tirx.Var):
        if expr not in values:
            raise ValueError(f"{expr} is not a size")
        return values[expr]
    symbol = _OPERATORS.get(type(expr))
    if symbol is None:
        raise ValueError(f"{expr} is not a size")
    left, right = (to_size(side, values, multiples) for side in (expr.a, expr.b))
    if symbol in ("//", "%") and isinstance(right, int) and right < 0:  # TVM writes -n % 5 as n % -5 * -1
        quotient = [symbol, _opposite(left), -right]
        return quotient if symbol == "//" else _opposite(quotient)
    if symbol == "*" and -1 in (left, right):
        return _opposite(right if left == -1 else left)
    if symbol in ("+", "-") and _is_opposite(right):
        return ["-" if symbol == "+" else "+", left, _opposite(right)]
    if symbol == "*":
        return _times(left, right, multiples)
    if symbol == "+" and isinstance(right, int) and right < 0:
        return ["-", left, -right]
    return [symbol, left, right]


def _is_opposite(size: SizeExpr) -> bool:
    """Whether a size expression is written as 0 minus another."""
    return isinstance(size, list) and size[:2] == ["-", 0]


def _opposite(size: SizeExpr) -> SizeExpr:
    """The size expression of -size."""
    return size[2] if isinstance(size, list) and _is_opposite(size) else ["-", 0, size]


def _times(left: SizeExpr, right: SizeExpr, multiples: Mapping[str, int]) -> SizeExpr:
    """The size expression of a product, simplified: (n // 32) * 32 is n if n is a multiple of 32."""
    if isinstance(left, int) and not isinstance(right, int):
        left, right = right, left
    if isinstance(right, int) and isinstance(left, list) and left[0] == "//":
        _, name, divisor = left
        if isinstance(name, str) and isinstance(divisor, int) and multiples.get(name, 1) % divisor == 0:
            if right % divisor == 0:
                return name if right == divisor else ["*", name, right // divisor]
            if divisor % right == 0:
                return ["//", name, divisor // right]
    return ["*", left, right]


def plain_sizes(text: str) -> str:
    """`text` with sizes in terms of the dimensions, where a library or a message has written variables."""

    def of_dim(hit: re.Match[str]) -> str:
        if hit[3] is None:
            return f"{hit[1]} / {hit[2]}"
        return hit[1] if hit[3] == hit[2] else f"{hit[1]} / {hit[2]} * {hit[3]}"

    return re.sub(r"T\.int64\((-?\d+)\)", r"\1", _PART.sub(of_dim, text))
