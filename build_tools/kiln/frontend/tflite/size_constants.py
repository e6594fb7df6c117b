"""Constants of a graph that were computed from its size, in the form for all sizes.

Two versions of a graph, imported at two sizes, have the same constants in the same order. One that differs is
a list of integers, each a * size + b, such as the number of iterations of a loop; or a tensor of equal
elements whose shape has such numbers, such as the zeros with which a loop's results begin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import ir, relax

from kiln.arrays import Array
from kiln.extents import Extent
from kiln.frontend.symbols import int64_of

_MOST_NUMBERS = 64  # in a list of integers


@dataclass(frozen=True)
class SizeConstant:
    """A constant whose numbers depend on the size: its shape, and its elements if they are not all equal."""

    shape: list[Extent]
    elements: list[Extent] | None
    fill: Array  # one element, of the constant's type

    def emit(self, emit: Callable[[Any], Any]) -> Any:
        """Emit the operators that make the tensor, each as a binding of its own."""
        dtype = str(self.fill.dtype)
        if self.elements is None:
            shape = relax.ShapeExpr([int64_of(size) for size in self.shape])
            return emit(relax.op.full(shape, relax.const(self.fill, dtype), dtype))
        sizes = relax.ShapeExpr([int64_of(number) for number in self.elements])
        numbers = emit(relax.op.shape_to_tensor(sizes))
        if dtype != "int64":
            numbers = emit(relax.op.astype(numbers, dtype))
        if [int(size) for size in self.shape] == [len(self.elements)]:
            return numbers
        return emit(relax.op.reshape(numbers, relax.ShapeExpr([int(size) for size in self.shape])))

    def at(self, evaluated: Callable[[Extent], int]) -> Array:
        """The constant at the size at which an extent is `evaluated`."""
        shape = [evaluated(size) for size in self.shape]
        if self.elements is None:
            return np.full(shape, self.fill)
        return np.array([evaluated(number) for number in self.elements], self.fill.dtype).reshape(shape)


def constants_of(function: Any) -> list[Any]:
    """The constants that the bindings of a function read, in order."""
    values = [binding.value for block in function.body.blocks for binding in block.bindings]
    return [one for value in values for one in _constants(value)]


def _constants(expression: Any) -> Iterator[Any]:
    if isinstance(expression, ir.GenericConst):
        yield expression
    fields = {relax.Call: "args", relax.Tuple: "fields"}.get(type(expression))
    for part in getattr(expression, fields) if fields else ():
        yield from _constants(part)


def generalised(first: Array, second: Array, number: Callable[[Any, Any], Extent]) -> SizeConstant:
    """The constant that is `first` and `second` in the two versions.

    `number`: the extent that is two numbers in the versions. Raises ValueError for any other constant.
    """
    if first.dtype == second.dtype and first.ndim == second.ndim:
        same = (
            first.size and second.size and (first == first.flat[0]).all() and (second == first.flat[0]).all()
        )
        if same:
            return SizeConstant(_numbers(first.shape, second.shape, number), None, first.reshape(-1)[0])
        if (
            first.shape == second.shape
            and first.dtype.kind == "i"
            and first.size <= _MOST_NUMBERS
            and min(first.min(), second.min()) >= 0
        ):
            elements = _numbers(first.reshape(-1), second.reshape(-1), number)
            return SizeConstant(list(first.shape), elements, first.reshape(-1)[0])
    raise ValueError("a constant depends on the size")


def _numbers(
    first: Sequence[int] | Array, second: Sequence[int] | Array, number: Callable[[Any, Any], Extent]
) -> list[Extent]:
    return [number(int(a), int(b)) for a, b in zip(first, second, strict=True)]
