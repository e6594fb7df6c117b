"""Dynamic sizes: TIR expressions of variables with a range. A size is such an expression or a plain number.

A kernel family that supports dynamic shapes writes its loops with the helpers of tir/builder.py, which accept
both kinds of sizes. `SymbolRanges` has the ranges of the variables of the function that is being lowered.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, overload

import tvm
from tvm import sym, tirx

from kiln.callbacks import structural_walk
from kiln.config import sizes
from kiln.config.sizes import SizeExpr
from kiln.extents import Extent, extent

Key = TypeVar("Key")


def is_dynamic(size: Extent) -> bool:
    """Whether `size` is dynamic: known only at run time."""
    return not isinstance(size, (int, tirx.IntImm))


def variables(expr: Any) -> list[Any]:
    """The variables of an expression or statement, each once."""
    distinct: dict[Any, None] = {}  # in the order in which they are met

    def visit(variable: Any) -> None:
        distinct[variable] = None

    structural_walk(expr, ((tirx.Var, visit),))
    return list(distinct)


class SymbolRanges:
    """The variables that a kernel may use, each with its least and greatest value, and sizes made of them."""

    def __init__(self, ranges: Mapping[Any, tuple[int, int]]) -> None:
        self.ranges = ranges

    def _analyzer(self) -> Any:
        analyzer = sym.Analyzer()
        for variable, (least, greatest) in self.ranges.items():
            first, last = tirx.IntImm("int64", least), tirx.IntImm("int64", greatest + 1)
            analyzer.bind(variable, tvm.ir.Range(first, last))
        return analyzer

    def same(self, a: Extent, b: Extent) -> bool:
        """Whether two sizes are equal for all values of their variables (as far as TVM can prove)."""
        if not is_dynamic(a) and not is_dynamic(b):
            return int(a) == int(b)
        if not is_dynamic(a) or not is_dynamic(b):
            a, b = (tirx.IntImm("int64", int(x)) if not is_dynamic(x) else x for x in (a, b))
        return bool(self._analyzer().can_prove_equal(a, b))

    def same_shape(self, a: Sequence[Extent], b: Sequence[Extent]) -> bool:
        """Whether two shapes are equal for all values of their variables (as far as TVM can prove)."""
        return len(a) == len(b) and all(self.same(x, y) for x, y in zip(a, b, strict=True))

    def product(self, factors: Sequence[Extent]) -> Extent:
        """The product of sizes; an int if all sizes are constants."""
        total: Extent = 1
        for size in factors:
            size = extent(size)
            total = size if isinstance(total, int) and total == 1 else total * size
        return self.simplify(total)

    def simplify(self, size: Extent) -> Extent:
        """`size` as simplified by TVM, with the ranges of its variables known."""
        return size if isinstance(size, int) else extent(self._analyzer().simplify(size))

    def greatest(self, size: Extent) -> int:
        """The greatest value that `size` can have."""
        return int(size) if not is_dynamic(size) else int(self._analyzer().const_int_bound(size).max_value)

    def least(self, size: Extent) -> int:
        """The least value that `size` can have."""
        return int(size) if not is_dynamic(size) else int(self._analyzer().const_int_bound(size).min_value)

    def points(self) -> list[SymbolRanges]:
        """Each variable at its least value, at the geometric mean of its bounds, and at its greatest value.

        Where there are no variables, these ranges alone.
        """
        return [SymbolRanges(point) for point in sample_sizes(self.ranges)] if self.ranges else [self]


def sample_sizes(ranges: Mapping[Key, tuple[int, int]]) -> list[dict[Key, tuple[int, int]]]:
    """`ranges` of one size each: the least ones, the geometric means of the bounds, and the greatest ones."""

    def between(least: int, greatest: int, share: float) -> int:
        return round(math.exp(math.log(max(least, 1)) * (1 - share) + math.log(max(greatest, 1)) * share))

    return [
        {name: (between(*bounds, share),) * 2 for name, bounds in ranges.items()} for share in (0.0, 0.5, 1.0)
    ]


# Of sizes whose variables may have any value.
NO_RANGES = SymbolRanges({})
product, simplify = NO_RANGES.product, NO_RANGES.simplify


@overload
def ceil_div(size: int, step: int) -> int: ...
@overload
def ceil_div(size: Extent, step: int) -> Any: ...
def ceil_div(size: Extent, step: int) -> Extent:
    """`kiln.config.sizes.ceil_div` for a size that may be dynamic."""
    if isinstance(size, int):
        return sizes.ceil_div(size, step)
    return tirx.floordiv(size + int64(step - 1), int64(step))


def floor_div(size: Extent, step: int) -> Extent:
    """Whole steps in a size that may be dynamic, and is not negative."""
    if isinstance(size, int):
        return size // step
    return size if step == 1 else tirx.floordiv(size, int64(step))


def int64(value: Extent) -> Any:
    """`value` as an int64 index; lowering narrows indices that fit into 32 bits later."""
    return tirx.IntImm("int64", value) if isinstance(value, int) else value


def divided(value: SizeExpr, divisor: int) -> SizeExpr:
    """value / divisor, for a value that is a multiple of `divisor`."""
    if isinstance(value, int):
        return value // divisor
    if isinstance(value, list) and value[0] == "*" and isinstance(value[2], int) and value[2] % divisor == 0:
        return value[1] if value[2] == divisor else ["*", value[1], value[2] // divisor]
    return ["//", value, divisor]
