"""TIR expressions of sizes as size expressions (kiln.config.sizes)."""

from __future__ import annotations

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
        opposite = left[2] if isinstance(left, list) and left[:2] == ["-", 0] else ["-", 0, left]
        quotient = [symbol, opposite, -right]
        return quotient if symbol == "//" else ["-", 0, quotient]
    if symbol == "*" and -1 in (left, right):
        one = right if left == -1 else left
        return one[2] if isinstance(one, list) and one[:2] == ["-", 0] else ["-", 0, one]
    if symbol == "+" and isinstance(right, list) and right[:2] == ["-", 0]:
        return ["-", left, right[2]]
    if symbol == "-" and isinstance(right, list) and right[:2] == ["-", 0]:
        return ["+", left, right[2]]
    if symbol == "*":
        return _times(left, right, multiples)
    if symbol == "+" and isinstance(right, int) and right < 0:
        return ["-", left, -right]
    return [symbol, left, right]


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
