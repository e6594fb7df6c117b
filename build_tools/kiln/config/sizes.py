"""Size expressions: sizes that depend on dynamic dimensions, as plain data that JSON can represent.

A size expression is an integer, the name of a dimension, or `[operator, left, right]` with one of the
operators of OPERATORS. Sizes are never negative, though parts of an expression may be; // and % round down.
"""

from __future__ import annotations

import ast
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
    for name, segment in ranges.items():
        span = (
            str(segment["min"]) if segment["min"] == segment["max"] else f"{segment['min']}..{segment['max']}"
        )
        multiple = f" by {segment['multiple']}" if segment.get("multiple", 1) > 1 and ".." in span else ""
        padded = f" padded to {segment['size']}" if segment.get("strategy") == "pad" else ""
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


_PARSED = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%"}


_MOST_CHARACTERS = 200  # of an expression; functions recurse into it


def parse(text: str) -> SizeExpr:
    """The size expression of a text in infix notation, such as `past + 1` or `2*seq - 1`.

    Operators are + - * // %, and min and max of two sizes. Raises ValueError for other text, such as a name
    that is not an identifier.
    """
    try:
        if len(text) > _MOST_CHARACTERS:
            raise ValueError
        return _parsed(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(
            f"'{text[:60]}': a size, a dimension's name, or an expression such as 'past + 1' expected"
        ) from None


def _parsed(node: ast.expr) -> SizeExpr:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return node.id
    operator_of, sides = None, []
    if isinstance(node, ast.BinOp):
        operator_of, sides = _PARSED.get(type(node.op)), [node.left, node.right]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        operator_of, sides = node.func.id if node.func.id in ("min", "max") else None, node.args
    if operator_of is None or len(sides) != 2:
        raise ValueError
    return joined(operator_of, _parsed(sides[0]), _parsed(sides[1]))


def joined(operator_of: str, left: SizeExpr, right: SizeExpr) -> SizeExpr:
    """`[operator, left, right]`, with `-1 + n` as `n - 1`, and a number after its other addend.

    Raises ValueError for a division by 0.
    """
    if operator_of in ("//", "%") and right == 0:
        raise ValueError("a division by 0")
    if operator_of in ("+", "*") and isinstance(left, int) and not isinstance(right, int):
        left, right = right, left
    if operator_of == "+" and isinstance(right, int) and right < 0:
        return ["-", left, -right]
    if isinstance(left, int) and isinstance(right, int):
        return OPERATORS[operator_of](left, right)
    return [operator_of, left, right]


def substituted(expr: SizeExpr, values: Mapping[str, SizeExpr]) -> SizeExpr:
    """`expr` with its names replaced by `values`; a number where the result is constant."""
    if isinstance(expr, str):
        return values[expr]
    if isinstance(expr, int):
        return expr
    return joined(expr[0], substituted(expr[1], values), substituted(expr[2], values))


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
    """Bounds of `expr` over the ranges `dims`, by interval arithmetic: possibly wide, never too narrow.

    Raises ZeroDivisionError for a divisor that is always 0.
    """
    if isinstance(expr, int):
        return expr, expr
    if isinstance(expr, str):
        return dims[expr]
    left, right = bounds(expr[1], dims), bounds(expr[2], dims)
    if expr[0] == "-":
        return left[0] - right[1], left[1] - right[0]
    if expr[0] == "%":
        return _remainders(left, right)
    divisors: tuple[int, ...] = right
    if expr[0] == "//":  # a divisor near 0 gives the extremes, on both of its sides
        divisors = tuple(x for x in {*right, -1, 1} if x and right[0] <= x <= right[1])
    if not divisors:
        raise ZeroDivisionError
    corners = [OPERATORS[expr[0]](x, y) for x in left for y in divisors]
    return min(corners), max(corners)


def _remainders(value: tuple[int, int], divisor: tuple[int, int]) -> tuple[int, int]:
    """Bounds of value % divisor, which has the sign of the divisor, for two intervals."""
    (a, b), (c, d) = value, divisor
    if c == d == 0:
        raise ZeroDivisionError
    if c == d and a // c == b // c:
        return a % c, b % c
    if c > 0 and a >= 0 and b < c:
        return a, b
    high = 0 if d <= 0 else min(b, d - 1) if a >= 0 and c >= 0 else d - 1
    low = 0 if c >= 0 else max(a, c + 1) if b <= 0 and d <= 0 else c + 1
    return low, high


def grows(expr: SizeExpr) -> bool:
    """Whether `expr` has its greatest value, in every range, where all of its dimensions have theirs.

    False also where that is not seen. Dimensions are never negative.
    """
    if isinstance(expr, (int, str)):
        return isinstance(expr, str) or expr >= 0
    left, right = expr[1], expr[2]
    if expr[0] == "-":
        return isinstance(right, int) and grows(left)
    if expr[0] in ("//", "%"):
        return expr[0] == "//" and isinstance(right, int) and right > 0 and grows(left)
    both = expr[0] == "*" and not isinstance(left, int) and not isinstance(right, int)
    if both and any(term[0] == "-" for term in parts(expr) if isinstance(term, (list, tuple))):
        return False  # two negative factors have a positive product
    return grows(left) and grows(right)


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
