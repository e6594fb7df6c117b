"""Size expressions: sizes that depend on dynamic dimensions, as plain data that JSON can represent.

A size expression is an integer, the name of a dimension, or `[operator, left, right]` with one of the
operators of OPERATORS. Values are never negative; // and % round down.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

# int | str | [operator, Size, Size]
SizeExpr = Any

OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "min": min,
    "max": max,
}


def ceil_div(size: int, step: int) -> int:
    """ceil(size / step): the number of steps that cover `size`."""
    return -(-size // step)


def ranges_text(ranges: Mapping[str, Mapping[str, Any]]) -> str:
    """The sizes that a bucket accepts as text: `batch 1, seq 17..64 by 8 padded to 64`; may be empty.

    `ranges`: by name of the dimension `min` and `max`, and where they matter `multiple`, and for sizes that
    are padded `strategy` ("pad") and the padded `size`.
    """
    texts = []
    for name, part in ranges.items():
        span = str(part["min"]) if part["min"] == part["max"] else f"{part['min']}..{part['max']}"
        multiple = f" by {part['multiple']}" if part.get("multiple", 1) > 1 and ".." in span else ""
        padded = f" padded to {part['size']}" if part.get("strategy") == "pad" else ""
        texts.append(f"{name} {span}{multiple}{padded}")
    return ", ".join(texts)


def check(expr: SizeExpr) -> SizeExpr:
    """Return `expr` unchanged. Raises ValueError if it is not a size expression."""
    if isinstance(expr, bool):
        raise ValueError(f"size {expr}: a number, a dimension's name or [operator, left, right] expected")
    if isinstance(expr, (int, str)):
        return expr
    if not isinstance(expr, (list, tuple)) or len(expr) != 3 or expr[0] not in OPERATORS:
        raise ValueError(f"size {expr}: a number, a dimension's name or [operator, left, right] expected")
    check(expr[1])
    check(expr[2])
    return expr


def names(expr: SizeExpr) -> set[str]:
    """Names of the dimensions in `expr`."""
    if isinstance(expr, str):
        return {expr}
    return set() if isinstance(expr, int) else names(expr[1]) | names(expr[2])


def evaluate(expr: SizeExpr, dims: Mapping[str, int]) -> int:
    """Value of `expr` for the sizes `dims`. Raises KeyError for a dimension that is not in `dims`."""
    if isinstance(expr, int):
        return expr
    if isinstance(expr, str):
        return dims[expr]
    return OPERATORS[expr[0]](evaluate(expr[1], dims), evaluate(expr[2], dims))


def bounds(expr: SizeExpr, dims: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    """Bounds of `expr` over the ranges `dims`, by interval arithmetic: possibly wide, never too narrow."""
    if isinstance(expr, int):
        return expr, expr
    if isinstance(expr, str):
        return dims[expr]
    (a, b), (c, d) = bounds(expr[1], dims), bounds(expr[2], dims)
    if expr[0] == "-":
        return a - d, b - c
    if expr[0] == "%":
        if a < 0:
            return 0, d - 1
        return (a, b) if b < c else (0, min(b, d - 1))
    corners = [OPERATORS[expr[0]](x, y) for x in (a, b) for y in (c, d)]
    return min(corners), max(corners)


def parts(expr: SizeExpr) -> Iterator[SizeExpr]:
    """Yield `expr` and all of its subexpressions, outer ones first."""
    yield expr
    if isinstance(expr, (list, tuple)):
        yield from parts(expr[1])
        yield from parts(expr[2])


def show(expr: SizeExpr) -> str:
    """`expr` in infix notation, such as `(seq + 1) * 12`."""
    if isinstance(expr, (int, str)):
        return str(expr)
    left, right = show(expr[1]), show(expr[2])
    if expr[0] in ("min", "max"):
        return f"{expr[0]}({left}, {right})"
    if _is_sum(expr[1]) and expr[0] not in ("+", "-"):
        left = f"({left})"
    if isinstance(expr[2], (list, tuple)) and expr[2][0] not in ("min", "max") and expr[0] != "+":
        right = f"({right})"
    return f"{left} {expr[0]} {right}"


def _is_sum(expr: SizeExpr) -> bool:
    return isinstance(expr, (list, tuple)) and expr[0] in ("+", "-")


def c_text(expr: SizeExpr, dims: Mapping[str, str]) -> str:
    """`expr` in C; `dims`: C text of each dimension. Exact if no operation overflows."""
    if isinstance(expr, int):
        return str(expr)
    if isinstance(expr, str):
        return dims[expr]
    left, right = c_text(expr[1], dims), c_text(expr[2], dims)
    if expr[0] in ("min", "max"):
        return f"({left} {'<' if expr[0] == 'min' else '>'} {right} ? {left} : {right})"
    return f"({left} {expr[0].replace('//', '/')} {right})"
