"""One node of an ONNX graph on its way into Relax, as converters see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import ir, relax, tirx

from kiln.frontend.onnx.value import Ratio, Value
from kiln.frontend.symbols import Extent, Symbols


@dataclass(frozen=True)
class Node:
    """A node's operator, attributes (as TVM's importer parses them) and inputs ("" where left out).

    `values` knows the inputs that are constant or made of shapes; `tensors` gives any input as a Relax
    expression, and builds one where it was only a value so far.
    """

    op: str
    inputs: Sequence[str]
    attributes: dict[str, Any]
    values: Mapping[str, Value]
    tensors: Callable[[str], Any]
    symbols: Symbols
    builder: Any

    def has(self, index: int) -> bool:
        """Whether input `index` is given."""
        return index < len(self.inputs) and self.inputs[index] != ""

    def tensor(self, index: int) -> Any:
        """Input `index` as a Relax expression, None where it is left out."""
        return self.tensors(self.inputs[index]) if self.has(index) else None

    def shape(self, index: int) -> list[Extent]:
        """The shape of input `index`."""
        return extents(self.tensor(index))

    def constant(self, index: int) -> npt.NDArray[Any] | None:
        """Input `index` where it is a constant, else None."""
        if not self.has(index):
            return None
        value = self.values.get(self.inputs[index])
        if value is not None:
            return value.numpy() if value.is_constant else None
        tensor = self.tensor(index)
        return tensor.value.numpy() if isinstance(tensor, ir.GenericConst) else None

    def whole(self, index: int, attribute: str | None = None) -> list[Extent] | None:
        """Input `index`, whole numbers or expressions, or the attribute it was before; None: not known."""
        if not self.has(index):
            given = self.attributes.get(attribute) if attribute else None
            return None if given is None else [int(item) for item in given]
        value = self.values.get(self.inputs[index])
        if value is not None:
            return (
                None if any(isinstance(item, (float, Ratio)) for item in value.extents()) else value.extents()
            )
        constant = self.constant(index)
        return None if constant is None else [int(item) for item in constant.reshape(-1)]

    def known(self, index: int, attribute: str | None = None) -> list[Extent]:
        """As `whole`. Raises ValueError where it is not known."""
        found = self.whole(index, attribute)
        if found is None:
            name = self.inputs[index] if self.has(index) else attribute
            raise ValueError(f"its input '{name}' is not known before the model runs")
        return found


def extents(tensor: Any) -> list[Extent]:
    """The shape of a Relax expression: ints, and expressions where a size is symbolic."""
    return [int(size) if isinstance(size, tirx.IntImm) else size for size in tensor.ty.shape]


def shape_expr(sizes: Sequence[Extent]) -> Any:
    """A shape for Relax operators."""
    return relax.ShapeExpr(list(sizes))


def prims(sizes: Sequence[Extent]) -> list[Any]:
    """Numbers for Relax operators that also take expressions."""
    return [relax.prim_value(tirx.IntImm("int64", size) if isinstance(size, int) else size) for size in sizes]


def as_tensor(value: Value) -> Any:
    """A known value as a Relax expression: a constant, or for what depends on a size an expression of it.

    relax.arange(n, n + 1) is the tensor [n]: it lowers to a loop, where relax.shape_to_tensor is a call into
    TVM's virtual machine.
    """
    if value.is_constant:
        return relax.const(value.numpy(), value.dtype)
    parts = [_element(item, value.dtype) for item in value.items.reshape(-1)]
    whole = parts[0] if len(parts) == 1 else relax.op.concat(parts, axis=0)
    return relax.op.reshape(whole, list(value.items.shape)) if value.items.ndim != 1 else whole


def _element(item: Any, dtype: str) -> Any:
    if isinstance(item, Ratio):
        return relax.op.divide(_element(item.top, dtype), relax.const(item.bottom, dtype))
    if isinstance(item, (bool, int, float)):
        return relax.const(np.array([item], dtype), dtype)
    one = tirx.IntImm("int64", 1)
    whole = relax.op.arange(
        relax.prim_value(item), relax.prim_value(item + 1), relax.prim_value(one), "int64"
    )
    return whole if dtype == "int64" else relax.op.astype(whole, dtype)
