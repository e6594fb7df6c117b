"""Dimensions that stay open in an imported graph: their variables, and shapes written in terms of them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import sym, tirx

from kiln.config.dims import Segment
from kiln.config.sizes import SizeExpr, evaluate

# An extent: int, or a TIR expression of the dimensions' variables.
Extent = Any

_OPERATORS = {
    tirx.Add: "+",
    tirx.Sub: "-",
    tirx.Mul: "*",
    tirx.FloorDiv: "//",
    tirx.FloorMod: "%",
    tirx.Min: "min",
    tirx.Max: "max",
}


class Symbols:
    """The variables of one import.

    A dimension whose sizes are multiples of m > 1 gets a variable for size / m, so that TVM's arithmetic can
    divide an extent by a stride: its extent is `variable * m`.
    """

    def __init__(self, bucket: Mapping[str, Segment] | None = None) -> None:
        self._analyzer = sym.Analyzer()
        self._variables: dict[str, Any] = {}
        self._parts: dict[str, Segment] = {}
        for name, part in (bucket or {}).items():
            if part.size is not None:
                continue
            label = name if part.multiple == 1 else f"{name}_div{part.multiple}"
            variable = tirx.Var(label, "int64")
            least, greatest = part.min // part.multiple, part.max // part.multiple
            self._analyzer.bind(variable, tvm.ir.Range(_int64(least), _int64(greatest + 1)))
            self._variables[name], self._parts[name] = variable, part

    def extent(self, dim: str) -> Extent:
        """The size of a symbolic dimension."""
        multiple = self._parts[dim].multiple
        return self._variables[dim] if multiple == 1 else self._variables[dim] * multiple

    def divided(self) -> list[Any]:
        """The variables that stand for a part of their dimension: no input's shape is one of them alone."""
        return [self._variables[name] for name, part in self._parts.items() if part.multiple != 1]

    def describe(self) -> str:
        """The attribute kiln.dims: JSON, by variable the dimension, its divisor, and the variable's range."""
        return json.dumps(
            {
                self._variables[name].name: {
                    "dim": name,
                    "divide": part.multiple,
                    "min": part.min // part.multiple,
                    "max": part.max // part.multiple,
                }
                for name, part in self._parts.items()
            }
        )

    def simplify(self, extent: Extent) -> Extent:
        """`extent` in its simplest form over the dimensions' ranges; an int where it is one."""
        if isinstance(extent, int):
            return extent
        found = self._analyzer.simplify(extent)
        return int(found) if isinstance(found, tirx.IntImm) else found

    def holds(self, condition: Any) -> bool:
        """Whether `condition`, a bool or a TIR expression, is true for all sizes."""
        return condition if isinstance(condition, bool) else bool(self._analyzer.can_prove(condition))

    def equal(self, a: Extent, b: Extent) -> bool:
        """Whether two extents are the same for all sizes."""
        if isinstance(a, int) and isinstance(b, int):
            return a == b
        return bool(self._analyzer.can_prove_equal(a, b))

    def product(self, extents: Sequence[Extent]) -> Extent:
        """The number of elements of a shape."""
        result: Extent = 1
        for extent in extents:
            result = result * extent
        return self.simplify(result)

    def greatest(self, extents: Sequence[Extent]) -> int | None:
        """The number of elements of a shape with every dimension at its greatest size; None: not known."""
        sizes = {name: part.max for name, part in self._parts.items()}
        try:
            return math.prod(evaluate(self.size(extent), sizes) for extent in extents)
        except (KeyError, ValueError, ZeroDivisionError):
            return None

    def size(self, extent: Extent) -> SizeExpr:
        """`extent` as a size expression (kiln.config.sizes) of the dimensions' names.

        Raises ValueError where it depends on more than these dimensions, or in a way that none can say.
        """
        values = {self._variables[name]: part_of(name, part.multiple) for name, part in self._parts.items()}
        multiples = {name: part.multiple for name, part in self._parts.items()}
        return to_size(self.simplify(extent), values, multiples)


def part_of(dim: str, divide: int) -> SizeExpr:
    """What a variable stands for: its dimension's size / `divide`."""
    return dim if divide == 1 else ["//", dim, divide]


def to_size(expr: Extent, values: Mapping[Any, SizeExpr], multiples: Mapping[str, int]) -> SizeExpr:
    """`expr` as a size expression of the model's dimensions.

    `values`: what each variable stands for. `multiples`: of what each dimension is a multiple.

    Raises ValueError for what no size expression can say.
    """
    if isinstance(expr, (int, tirx.IntImm)):
        return int(expr)
    if isinstance(expr, tirx.Var):
        if expr not in values:
            raise ValueError(f"{expr} is no size")
        return values[expr]
    operator = _OPERATORS.get(type(expr))
    if operator is None:
        raise ValueError(f"{expr} is no size")
    left, right = (to_size(side, values, multiples) for side in (expr.a, expr.b))
    if operator == "*":
        return _times(left, right, multiples)
    if operator == "+" and isinstance(right, int) and right < 0:
        return ["-", left, -right]
    return [operator, left, right]


def _times(left: SizeExpr, right: SizeExpr, multiples: Mapping[str, int]) -> SizeExpr:
    """The product of two sizes; (n // 32) * 32 is n where n is a multiple of 32."""
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


def _int64(value: int) -> Any:
    return tirx.IntImm("int64", value)
