"""Dimensions that stay open in an imported graph: their variables, and shapes written in terms of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import sym, tirx

from kiln.config.dims import Segment
from kiln.config.sizes import SizeExpr

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

    def size(self, extent: Extent) -> SizeExpr:
        """`extent` as a size expression (kiln.config.sizes) of the dimensions' names.

        Raises ValueError where it depends on more than these dimensions, or in a way that none can say.
        """
        return to_size(self.simplify(extent), json.loads(self.describe()))


def to_size(extent: Extent, dims: Mapping[str, Mapping[str, Any]]) -> SizeExpr:
    """A TIR expression as a size expression of the dimensions; `dims`: the attribute kiln.dims, parsed.

    Raises ValueError for what no size expression can say.
    """
    if isinstance(extent, (int, tirx.IntImm)):
        return int(extent)
    if isinstance(extent, tirx.Var):
        if extent.name not in dims:
            raise ValueError(f"no size: {extent}")
        return _scaled(dims[extent.name], 1)
    operator = _OPERATORS.get(type(extent))
    if operator is None:
        raise ValueError(f"no size: {extent}")
    if operator == "*" and isinstance(extent.a, tirx.Var) and isinstance(extent.b, tirx.IntImm):
        return _scaled(dims[extent.a.name], int(extent.b))
    left, right = to_size(extent.a, dims), to_size(extent.b, dims)
    if operator == "+" and isinstance(right, int) and right < 0:
        return ["-", left, -right]
    return [operator, left, right]


def _scaled(dim: Mapping[str, Any], factor: int) -> SizeExpr:
    """factor * (dim / divide), with one operation where one is enough."""
    name, divide = dim["dim"], int(dim["divide"])
    if factor % divide == 0:
        return name if factor == divide else ["*", name, factor // divide]
    if divide % factor == 0:
        return ["//", name, divide // factor]
    return ["*", ["//", name, divide], factor]


def _int64(value: int) -> Any:
    return tirx.IntImm("int64", value)
