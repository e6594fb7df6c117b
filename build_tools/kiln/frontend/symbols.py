"""Dynamic dimensions of an imported graph: their symbolic variables, and shapes as expressions of these."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import sym, tirx

from kiln.config.dims import Segment
from kiln.config.sizes import OPERATORS, SizeExpr, evaluate, names, show
from kiln.errors import KilnError
from kiln.extents import Extent
from kiln.frontend.missing_bounds import MissingBounds
from kiln.frontend.size_of import part_of, to_size
from kiln.frontend.size_trials import combinations, elements_above, multiples, some_size

MOST_COUNTED = 1 << 28  # elements of an axis whose size is in the data

_COMPARISONS: dict[type, Callable[[int, int], bool]] = {
    tirx.EQ: operator.eq,
    tirx.NE: operator.ne,
    tirx.LT: operator.lt,
    tirx.LE: operator.le,
    tirx.GT: operator.gt,
    tirx.GE: operator.ge,
}
_UNTRIED = (KeyError, ValueError, ZeroDivisionError)


class SizeComparisons:
    """Simplification and comparison of extents for all values of the variables within their ranges."""

    def __init__(self) -> None:
        self._analyzer = sym.Analyzer()

    def bind(self, variable: Any, least: int, greatest: int) -> None:
        """Set the range of a variable, both ends included."""
        self._analyzer.bind(variable, tvm.ir.Range(int64(least), int64(greatest + 1)))

    def simplify(self, extent: Extent) -> Extent:
        """`extent` simplified for the ranges of the variables; an int if it is constant."""
        if isinstance(extent, int):
            return extent
        simplified = self._analyzer.simplify(extent)
        return int(simplified) if isinstance(simplified, tirx.IntImm) else simplified

    def holds(self, condition: Any) -> bool:
        """Whether `condition`, a bool or a TIR expression, is provably true for all values."""
        return condition if isinstance(condition, bool) else bool(self._analyzer.can_prove(condition))

    def equal(self, a: Extent, b: Extent) -> bool:
        """Whether two extents are provably equal for all values."""
        if isinstance(a, int) and isinstance(b, int):
            return a == b
        return bool(self._analyzer.can_prove_equal(a, b))


@dataclass(frozen=True)
class Counted:
    """A dimension, of `tensor` of the model's file, that a step of the run counts; `bound`: its greatest."""

    name: str
    tensor: str
    bound: SizeExpr


class Symbols(SizeComparisons):
    """The symbolic variables of the dynamic dimensions of one import, and comparisons of extents.

    A dimension whose sizes are multiples of m > 1 has a variable for size / m, and the extent `variable * m`,
    so that TVM's arithmetic can divide the extent by a stride.
    """

    def __init__(
        self, bucket: Mapping[str, Segment] | None = None, bounds: Mapping[str, int] | None = None
    ) -> None:
        """`bucket`: by dimension, the sizes that it covers. `bounds`: see `ImportOptions`."""
        super().__init__()
        self.bounds, self._counted = dict(bounds or {}), dict[str, Counted]()
        self.found: dict[Any, Any] = {}  # by tensor, the places of its elements that are not zero
        # The tensor of the file that a function computes, whose bound those in its body have.
        self.inside, self._bounded = "", set[str]()
        self.missing = MissingBounds()
        self._variables: dict[str, Any] = {}
        self._parts: dict[str, Segment] = {}
        self._fixed: dict[str, int] = {}  # by dimension of one size in this import, that size
        for name, segment in (bucket or {}).items():
            if segment.size is not None:
                self._fixed[name] = segment.size
                continue
            label = name if segment.multiple == 1 else f"{name}_div{segment.multiple}"
            variable = tirx.Var(label, "int64")
            least, greatest = segment.min // segment.multiple, segment.max // segment.multiple
            self.bind(variable, least, greatest)
            self._variables[name], self._parts[name] = variable, segment

    def extent(self, dim: str) -> Extent:
        """The size of the dynamic dimension `dim` as a TIR expression."""
        return self.parts(dim) * self._parts[dim].multiple

    def parts(self, dim: str) -> Any:
        """The variable for the size of the dynamic dimension `dim` in units of its `multiple`."""
        return self._variables[dim]

    def extent_of(self, size: SizeExpr) -> Extent:
        """A size expression as a TIR expression, simplified; dimensions of one size are numbers."""
        if isinstance(size, int):
            return size
        if isinstance(size, str):
            extent = self._fixed.get(size)
            return self.extent(size) if extent is None else extent
        left, right = self.extent_of(size[1]), self.extent_of(size[2])
        if isinstance(left, int) and isinstance(right, int):
            return OPERATORS[size[0]](left, right)
        named = {"//": tirx.floordiv, "%": tirx.floormod, "min": tirx.min, "max": tirx.max}
        function = named.get(size[0], OPERATORS[size[0]])
        return self.simplify(function(left, right))

    def divided(self) -> list[Any]:
        """The variables that are not the size of an input's axis: those for size / m, and counted sizes."""
        segments = self._parts.items()
        return [self._variables[n] for n, segment in segments if segment.multiple != 1 or n in self._counted]

    def most_counted(self, tensor: str, derived: Extent | None) -> Extent:
        """The most elements that may be counted for `tensor`: `derived`, or its bound where that is less.

        `tensor[axis]` is the size of one axis; its bound is its own or that of the tensor.
        Where both are missing, `missing` notes the tensor or raises ValueError.
        """
        bound = self.bounds.get(tensor, self.bounds.get(tensor.rpartition("[")[0]))
        if bound is None and self.inside:
            bound = self.bounds.get(self.inside)
            self._bounded.add(self.inside)
            tensor = self.inside
        if bound is None and derived is None:
            return self.missing.note(tensor)
        if bound is None or derived is None:
            return derived if bound is None else bound
        if isinstance(derived, int):
            return min(derived, bound)
        return self.simplify(tirx.min(derived, int64(bound)))

    def counted(self, tensor: str, most: Extent) -> tuple[str, Any]:
        """A new dimension, 0..most, that a step of the run counts: its name and its variable.

        `tensor`: the tensor of the file that has this size. Raises ValueError where `most` is too large.
        """
        greatest = self.greatest([most])
        if greatest is None or greatest > MOST_COUNTED:
            raise ValueError(
                f"its result may have {self.shown(most)} elements, allowed: at most {MOST_COUNTED}; give "
                f"fewer in the model's YAML, 'bounds: {{{tensor}: N}}'"
            )
        stem = name = "n_" + (re.sub(r"[^A-Za-z0-9]+", "_", tensor).strip("_") or "counted")
        number = 1
        while name in self._parts or name in self._fixed:
            number += 1
            name = f"{stem}_{number}"
        variable = tirx.Var(name, "int64")
        self.bind(variable, 0, greatest)
        self._counted[name] = Counted(name, tensor, self.size(most))
        self._variables[name] = variable
        self._parts[name] = Segment(strategy="dynamic", min=0, max=greatest, multiple=1)
        return name, variable

    def counts(self, dims: Collection[str]) -> bool:
        """Whether one of `dims` is a size that a step of the run counts."""
        return any(dim in self._counted for dim in dims)

    def all_counted(self) -> list[Counted]:
        """The counted dimensions. Raises KilnError for a bound of a tensor that has none."""
        tensors = {counted_dim.tensor for counted_dim in self._counted.values()}
        tensors |= {tensor.rpartition("[")[0] for tensor in tensors if tensor.endswith("]")} | self._bounded
        for tensor in self.bounds:
            if tensor not in tensors:
                listed = ", ".join(sorted(tensors)) or "none"
                raise KilnError(
                    f"bounds.{tensor}: no tensor of this name has a size that is in the data, allowed: "
                    f"{listed}"
                )
        return list(self._counted.values())

    def describe(self) -> str:
        """The value of attribute kiln.dims: JSON, by variable, the dimension, its divisor, and its range."""
        return json.dumps(
            {
                self._variables[name].name: {
                    "dim": name,
                    "divide": segment.multiple,
                    "min": segment.min // segment.multiple,
                    "max": segment.max // segment.multiple,
                    **({"counted": True} if name in self._counted else {}),
                }
                for name, segment in self._parts.items()
            }
        )

    def product(self, extents: Sequence[Extent]) -> Extent:
        """The number of elements of a shape, simplified."""
        result: Extent = 1
        for extent in extents:
            result = result * extent
        return self.simplify(result)

    def holds(self, condition: Any) -> bool:
        """As in SizeComparisons; what TVM cannot prove is tried with all sizes, up to MOST_TRIED."""
        return super().holds(condition) or (not isinstance(condition, bool) and self._tried(condition))

    def equal(self, a: Extent, b: Extent) -> bool:
        """As in SizeComparisons; what TVM cannot prove is tried with all sizes, up to MOST_TRIED."""
        if super().equal(a, b):
            return True
        return not (isinstance(a, int) and isinstance(b, int)) and self._tried(
            tirx.EQ(int64_of(a), int64_of(b))
        )

    def settled(self, extent: Extent) -> Extent:
        """`extent` simplified; a number where it has the same value for all sizes, tried as in `equal`."""
        simple = self.simplify(extent)
        if isinstance(simple, int):
            return simple
        try:
            _, number, _ = next(self._trials(simple, 0))
        except _UNTRIED:
            return simple
        return number if self.equal(simple, number) else simple

    def differing(self, a: Extent, b: Extent, ones: bool = False) -> dict[str, int] | None:
        """Sizes of the dimensions for which two extents differ; None if none were found.

        `ones`: an extent of 1 counts as different, although it broadcasts.
        """
        try:
            for tried, left, right in self._trials(a, b):
                if left != right and (ones or 1 not in (left, right)):
                    return tried
        except _UNTRIED:
            pass
        return None

    def _tried(self, condition: Any) -> bool:
        """Whether a comparison of extents holds for each size of the dimensions; False if they are many."""
        compare = _COMPARISONS.get(type(condition))
        if compare is None:
            return False
        try:
            return all(compare(left, right) for _, left, right in self._trials(condition.a, condition.b))
        except _UNTRIED:
            return False

    def _trials(self, a: Extent, b: Extent) -> Iterator[tuple[dict[str, int], int, int]]:
        """The values of two extents for each combination of sizes of the dimensions.

        Raises one of _UNTRIED if there are more than MOST_TRIED, or if an extent depends on anything else.
        """
        sides = self.size(a), self.size(b)
        trials = combinations(self._parts, names(sides[0]) | names(sides[1]))
        if trials is None:
            raise ValueError
        for tried in trials:
            yield tried, evaluate(sides[0], tried), evaluate(sides[1], tried)

    def greatest(self, extents: Sequence[Extent], above: int | None = None) -> int | None:
        """The most elements of a shape for any sizes of the dimensions; None: unknown, or at most `above`."""
        try:
            return elements_above(self._parts, [self.size(extent) for extent in extents], above)
        except _UNTRIED:
            return None

    def indivisible(self, extent: Extent, divisor: Extent) -> dict[str, int] | None:
        """Sizes of the dimensions for which `divisor` does not divide `extent`; None if none are found.

        What cannot be proven is tried with the two least, the middle and the two greatest sizes.
        """
        if isinstance(extent, int) and isinstance(divisor, int):
            return {} if divisor and extent % divisor else None
        if self.holds(tirx.floormod(int64_of(extent), int64_of(divisor)) == 0):
            return None
        try:
            sides = self.size(extent), self.size(divisor)
        except ValueError:
            return None
        used = sorted(names(sides[0]) | names(sides[1]))
        for number in range(5):
            tried = {name: some_size(self._parts[name], number) for name in used}
            top, bottom = (evaluate(side, tried) for side in sides)
            if bottom and top % bottom:
                return tried
        return None

    def multiples(self, a: Extent, b: Extent, fit: Callable[[int, int], bool]) -> dict[str, int]:
        """Multiples of the dimensions with which the values of two extents `fit`; empty if none are found."""
        try:
            left, right = self.size(a), self.size(b)
            used = names(left) | names(right)
            return multiples(self._parts, used, lambda at: fit(evaluate(left, at), evaluate(right, at)))
        except _UNTRIED:
            return {}

    def exceeding(self, extent: Extent, limit: Extent) -> dict[str, int] | None:
        """Sizes of the dimensions for which `extent` exceeds `limit`; None if it does so for none.

        What TVM cannot prove is tried with all sizes where there are at most MOST_TRIED; with more sizes, the
        least ones are returned.
        """
        if isinstance(extent, int) and isinstance(limit, int):
            return {} if extent > limit else None
        if self.holds(int64_of(extent) <= int64_of(limit)):
            return None
        sides = self.size(extent), self.size(limit)
        used = names(sides[0]) | names(sides[1])
        trials = combinations(self._parts, used)
        if trials is None:
            return {name: self._parts[name].min for name in sorted(used)}
        return next((at for at in trials if evaluate(sides[0], at) > evaluate(sides[1], at)), None)

    def shown(self, extent: Extent) -> str:
        """An extent as text for a message, in terms of the dimensions where possible."""
        try:
            return show(self.size(extent))
        except ValueError:
            return str(extent)

    def size(self, extent: Extent) -> SizeExpr:
        """`extent` as a size expression (kiln.config.sizes) of the dimensions' names.

        Raises ValueError if it depends on other variables or has an operator that size expressions lack.
        """
        multiples = {name: segment.multiple for name, segment in self._parts.items()}
        values = {self.parts(name): part_of(name, multiple) for name, multiple in multiples.items()}
        return to_size(self.simplify(extent), values, multiples)


def int64_of(extent: Extent) -> Any:
    """An extent as a TIR expression."""
    return int64(extent) if isinstance(extent, int) else extent


def int64(value: int) -> Any:
    """An int64 constant of TIR, the type of sizes in shapes."""
    return tirx.IntImm("int64", value)
