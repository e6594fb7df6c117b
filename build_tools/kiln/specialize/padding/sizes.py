"""Symbolic sizes: dependence on padded dimensions, and comparisons that hold for every size of a bucket."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tvm import relax, tirx
from tvm.tirx.analysis import undefined_vars

from kiln.extents import extent
from kiln.frontend.symbols import SizeComparisons
from kiln.specialize.padding.tensors import Atom, Axis, NotNeutralError
from kiln.specialize.symbols import Symbol

Size = Any  # int, or a TIR expression of the dimensions' variables


class Sizes(SizeComparisons):
    """Comparisons of sizes that hold for every size of a bucket.

    `symbols`: symbols of the graph, by dimension. `padded`: the dimensions that the bucket pads; the
    attribute `padded` holds the variables of these dimensions.
    """

    def __init__(self, symbols: Mapping[str, Symbol], padded: Iterable[str]) -> None:
        super().__init__()
        self.padded = {symbols[name].variable for name in padded if name in symbols}
        self._keys = itertools.count()
        for symbol in symbols.values():
            if symbol.greatest is not None:
                self.bind(symbol.variable, symbol.least, symbol.greatest)

    def depends(self, size: Size) -> bool:
        """Whether a size depends on a padded dimension."""
        if isinstance(size, (int, tirx.IntImm)):
            return False
        return any(variable in self.padded for variable in undefined_vars(size))

    def least(self, size: Size) -> int | None:
        """A lower bound of a size; None: unknown."""
        return self._bound(size)[0]

    def greatest(self, size: Size) -> int | None:
        """An upper bound of a size; None: unknown."""
        return self._bound(size)[1]

    def _bound(self, size: Size) -> tuple[int | None, int | None]:
        if isinstance(size, (int, tirx.IntImm)):
            return int(size), int(size)
        bounds = self._analyzer.const_int_bound(size)
        far = 1 << 62
        low, high = int(bounds.min_value), int(bounds.max_value)
        return (low if abs(low) < far else None), (high if abs(high) < far else None)

    def atom(self, size: Size) -> Atom:
        """A new atom of `size`, padded if `size` depends on a padded dimension.

        Raises NotNeutralError if such a size does not grow with the padded dimensions.
        """
        size = self.simplify(size)
        if not self.depends(size):
            return Atom(size)
        if not self.grows(size):
            raise NotNeutralError(f"its result's size {size} does not grow with the padded dimension")
        return Atom(size, next(self._keys))

    def axis(self, size: Size) -> Axis:
        """A new axis of `size`: one atom; without atoms for size 1."""
        size = self.simplify(size)
        return () if isinstance(size, int) and size == 1 else (self.atom(size),)

    def like(self, axis: Axis) -> Axis:
        """A copy of the axis in which padded atoms have new keys."""
        return tuple(atom if not atom.padded else Atom(atom.size, next(self._keys)) for atom in axis)

    def grows(self, size: Size) -> bool:
        """Whether a size is provably non-decreasing in the padded dimensions."""
        if not self.depends(size):
            return True
        if isinstance(size, tirx.Var):
            return True
        if isinstance(size, (tirx.Add, tirx.Min, tirx.Max)):
            return self.grows(size.a) and self.grows(size.b)
        if isinstance(size, tirx.Sub):
            return self.grows(size.a) and not self.depends(size.b)
        if isinstance(size, tirx.Mul):
            factors = [(size.a, size.b), (size.b, size.a)]
            return any(
                self.grows(a) and not self.depends(b) and self.holds(b >= 0)
                if not isinstance(b, int)
                else self.grows(a) and b >= 0
                for a, b in factors
            )
        if isinstance(size, tirx.FloorDiv):
            return self.grows(size.a) and not self.depends(size.b) and self.holds(size.b > 0)
        return False

    def for_every_size(self, shape: list[Size], limit: int) -> list[list[int]] | None:
        """The values of `shape` for each size of the one padded variable that it depends on.

        None where the shape depends on another variable or on several, or for more than `limit` sizes.
        """
        variables = {
            variable for size in shape if not isinstance(size, int) for variable in undefined_vars(size)
        }
        if len(variables) != 1 or not variables <= self.padded:
            return None
        [variable] = variables
        least, greatest = self._bound(variable)
        if least is None or greatest is None or greatest - least >= limit:
            return None
        numbers = range(least, greatest + 1)
        return [[int(evaluated(size, {variable: number})) for size in shape] for number in numbers]

    def total(self, axis: Axis) -> Size:
        """The size of an axis: the product of its atoms' sizes."""
        result: Size = 1
        for atom in axis:
            result = result * atom.size
        return self.simplify(result)


def shape_of(ty: Any) -> list[Size]:
    """The shape of a tensor type: ints and TIR expressions. Raises NotNeutralError for an unknown shape."""
    if not isinstance(ty, relax.TensorType) or ty.shape is None:
        raise NotNeutralError("the shape of its result is not known")
    return [extent(size) for size in ty.shape]


_OPERATORS: dict[type, Callable[[int, int], int]] = {
    tirx.Add: operator.add,
    tirx.Sub: operator.sub,
    tirx.Mul: operator.mul,
    tirx.FloorDiv: operator.floordiv,
    tirx.FloorMod: operator.mod,
    tirx.Min: min,
    tirx.Max: max,
}


def evaluated(size: Size, numbers: Mapping[Any, int]) -> int:
    """The value of a size expression; `numbers`: by variable, its value."""
    if isinstance(size, (int, tirx.IntImm)):
        return int(size)
    if isinstance(size, tirx.Var):
        return numbers[size]
    function = _OPERATORS.get(type(size))
    if function is None:
        raise NotNeutralError(f"one of its sizes is {size}, which the proof cannot follow")
    return function(evaluated(size.a, numbers), evaluated(size.b, numbers))
