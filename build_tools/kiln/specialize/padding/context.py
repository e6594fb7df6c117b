"""Context of the proof's rules: sizes, the abstract states of variables, and their definitions."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, tirx

from kiln.graph.bindings import constant, operator
from kiln.specialize.padding import values
from kiln.specialize.padding.sizes import Size, Sizes, shape_of
from kiln.specialize.padding.tensors import KEPT, Axis, NotNeutralError, Padded, Region, tensor_state
from kiln.specialize.padding.values import ValueRange

State = Padded | list[Any]  # a tensor, or the fields of a tuple
Rule = Callable[["Context", Any], State]


class Context:
    """The abstract states of all variables that the proof has visited.

    sizes: comparisons of sizes. states: by variable. bound: by variable, the expression that it is bound to.
    leaks: by variable that holds a size as data, the error to raise where it is combined with data.
    """

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.states: dict[Any, State] = {}
        self.bound: dict[Any, Any] = {}
        self.leaks: dict[Any, str] = {}

    def state(self, expr: relax.Expr) -> State:
        """The state of an argument. Raises NotNeutralError for a number that depends on a padded size."""
        if isinstance(expr, relax.Tuple):
            return [self.state(field) for field in expr.fields]
        if isinstance(expr, relax.TupleGetItem):
            fields = self.state(expr.tuple_value)
            assert isinstance(fields, list)
            field_state: State = fields[int(expr.index)]
            return field_state
        array = constant(expr)
        if array is not None:
            return self.fixed(expr.ty, values.of_array(array))
        if expr in self.leaks:
            raise NotNeutralError(self.leaks[expr])
        if expr in self.states:
            return self.states[expr]
        if isinstance(getattr(expr, "ty", None), (relax.TensorType, relax.TupleType, relax.ShapeType)):
            raise NotNeutralError("the proof cannot follow one of its operands")
        return Padded((), {KEPT: self.number(expr)})

    def padded(self, expr: relax.Expr) -> Padded:
        """The state of an argument that is a tensor. Raises NotNeutralError for a tuple."""
        state = self.state(expr)
        if isinstance(state, list):
            raise NotNeutralError("a tuple is among its operands")
        return state

    def number(self, expr: relax.Expr) -> ValueRange:
        """The value of a number or size. Raises NotNeutralError if it depends on a padded dimension."""
        plain = expr.value if isinstance(expr, (tirx.IntImm, tirx.FloatImm)) else expr
        if isinstance(plain, (int, float)):
            return values.constant(plain)
        if self.sizes.depends(plain):
            raise NotNeutralError(f"it computes with the size {plain}, which padding changes")
        return values.FINITE

    def fixed(self, ty: Any, value: ValueRange) -> Padded:
        """The state of a tensor of type `ty` without padded axes, whose elements all have `value`."""
        return tensor_state([self.sizes.axis(size) for size in shape_of(ty)], lambda region: value)

    def new(self, ty: Any, value: Callable[[Region], ValueRange]) -> Padded:
        """The state of a tensor of type `ty`, with one new atom per axis; `value`: by region."""
        return tensor_state([self.sizes.axis(size) for size in shape_of(ty)], value)

    def definition(self, expr: relax.Expr) -> Any:
        """The expression that a variable is bound to; any other expression is returned unchanged."""
        return self.bound.get(expr, expr)

    def name(self, expr: relax.Expr) -> str:
        """The operator of a call without the prefix `relax.`; empty if `expr` is not an operator call."""
        return (operator(expr) or "").removeprefix("relax.")

    def dtype(self, expr: relax.Expr) -> str:
        """The element type of an argument; float64 for a number."""
        return str(expr.ty.dtype) if hasattr(expr, "ty") and hasattr(expr.ty, "dtype") else "float64"

    def refuse_padded(self, state: Padded, axes: Sequence[int], action: str) -> None:
        """Raise NotNeutralError if one of `axes` is padded; `action`: start of the message ("it sorts")."""
        for axis in axes:
            if any(atom.padded for atom in state.axes[axis]):
                raise NotNeutralError(f"{action} axis {axis}, {axis_text(state.axes[axis])}")


def axis_text(axis: Axis) -> str:
    """An axis as text for errors: its size in terms of the dimensions."""
    text = " * ".join(str(atom.size) for atom in axis)
    return "of size " + re.sub(r"T\.int64\((-?[0-9]+)\)", r"\1", text)


def normal_axes(axes: Any, rank: int) -> list[int]:
    """Axes given by an attribute, as sorted indices from 0; None stands for all axes."""
    if axes is None:
        return list(range(rank))
    listed: Sequence[Size] = [axes] if isinstance(axes, (int, tirx.IntImm)) else list(axes)
    return sorted(int(axis) % rank for axis in listed)
