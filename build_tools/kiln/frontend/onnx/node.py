"""The view of an ONNX node that converters to Relax receive."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import ir, relax, tirx

from kiln.extents import Extent, shape_of
from kiln.frontend.onnx.value import Ratio, Value, not_known
from kiln.frontend.symbols import Symbols


@dataclass(frozen=True)
class Node:
    """An ONNX node.

    op: operator. inputs: names of tensors, "" for an omitted input. attributes: as TVM's importer parses
    them. values: by name, the tensors that are constant or computed from shapes. tensors: returns the Relax
    expression of a tensor by name, built from its value if necessary. symbols: dynamic dimensions. builder:
    relax.BlockBuilder. opset: version of ONNX's operators. outputs: names of tensors, "" for an omitted one.
    replaced: by number, inputs that the converter has replaced, also for TVM's.
    """

    op: str
    inputs: Sequence[str]
    attributes: dict[str, Any]
    values: Mapping[str, Value]
    tensors: Callable[[str], Any]
    symbols: Symbols
    builder: Any
    opset: int = 0
    outputs: Sequence[str] = ()
    replaced: dict[int, Any] = field(default_factory=dict)

    def has(self, index: int) -> bool:
        """Whether the node has input `index`."""
        return index < len(self.inputs) and self.inputs[index] != ""

    def tensor(self, index: int) -> Any:
        """Input `index` as a Relax expression; None if it is omitted."""
        if index in self.replaced:
            return self.replaced[index]
        return self.tensors(self.inputs[index]) if self.has(index) else None

    def shape(self, index: int) -> list[Extent]:
        """The shape of input `index`."""
        return shape_of(self.tensor(index))

    def constant(self, index: int) -> npt.NDArray[Any] | None:
        """The array of input `index` if it is a constant, else None."""
        if not self.has(index):
            return None
        value = self.values.get(self.inputs[index])
        if value is not None:
            return value.numpy() if value.is_constant else None
        tensor = self.tensor(index)
        return tensor.value.numpy() if isinstance(tensor, ir.GenericConst) else None

    def elements(self, index: int, attribute: str | None = None) -> list[Extent] | None:
        """The elements of input `index`, as ints or TIR expressions; None: unknown before run time.

        `attribute`: the attribute that holds the elements in older opsets, read if the input is omitted.
        """
        if not self.has(index):
            numbers = self.attributes.get(attribute) if attribute else None
            return None if numbers is None else [int(element) for element in numbers]
        value = self.values.get(self.inputs[index])
        if value is not None:
            return (
                None
                if any(isinstance(element, (float, Ratio)) for element in value.extents())
                else value.extents()
            )
        constant = self.constant(index)
        return None if constant is None else [int(element) for element in constant.reshape(-1)]

    def text(self, key: str, default: str) -> str:
        """The attribute `key`, a text."""
        value = self.attributes.get(key, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    def known_elements(self, index: int, attribute: str | None = None) -> list[Extent]:
        """The elements of input `index`; see `elements`. Raises ValueError if they are unknown."""
        elements = self.elements(index, attribute)
        if elements is None:
            name = self.inputs[index] if self.has(index) else attribute
            raise not_known(str(name))
        return elements


def shape_expr(sizes: Sequence[Extent]) -> Any:
    """A shape as an argument of Relax operators."""
    return relax.ShapeExpr(list(sizes))


def reshaped(tensor: Any, sizes: Sequence[Extent]) -> Any:
    """A tensor with other sizes, which may be 0: TVM copies the size of the tensor in place of a 0."""
    if all(any(isinstance(size, int) and size == 0 for size in shape) for shape in (shape_of(tensor), sizes)):
        return relax.op.zeros(shape_expr(sizes), str(tensor.ty.dtype))
    return relax.op.reshape(tensor, shape_expr(sizes))


def prims(sizes: Sequence[Extent]) -> list[Any]:
    """Sizes as arguments of Relax operators that accept numbers and expressions."""
    return [relax.prim_value(tirx.IntImm("int64", size) if isinstance(size, int) else size) for size in sizes]


def part(tensor: Any, axis: int, begin: Extent, end: Extent) -> Any:
    """Elements `begin` to `end` of an axis of `tensor`: numbers or expressions, neither of them negative.

    TVM cannot tell an end of two dimensions, such as `past + seq`, from one that counts from the end.
    """
    return relax.op.strided_slice(tensor, [axis], prims([begin]), prims([end]), assume_inbound=True)


def smaller(a: Extent, b: Extent) -> Extent:
    """The minimum of two sizes."""
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    return tirx.min(*(tirx.IntImm("int64", x) if isinstance(x, int) else x for x in (a, b)))


def as_tensor(value: Value) -> Any:
    """A value as a Relax tensor: a constant, or, if elements depend on sizes, a concat of computed elements.

    An element n is relax.arange(n, n + 1), which lowers to a loop, unlike relax.shape_to_tensor, which is a
    call into TVM's virtual machine.
    """
    if value.is_constant:
        return relax.const(value.numpy(), value.dtype)
    elements = [_element(element, value.dtype) for element in value.items.reshape(-1)]
    vector = elements[0] if len(elements) == 1 else relax.op.concat(elements, axis=0)
    return relax.op.reshape(vector, list(value.items.shape)) if value.items.ndim != 1 else vector


def _element(element: Any, dtype: str) -> Any:
    """One element of a value as a Relax tensor of shape [1]."""
    if isinstance(element, Ratio):
        return relax.op.divide(_element(element.top, dtype), relax.const(element.bottom, dtype))
    if isinstance(element, (bool, int, float)):
        return relax.const(np.array([element], dtype), dtype)
    unit = tirx.IntImm("int64", 1)
    vector = relax.op.arange(
        relax.prim_value(element), relax.prim_value(element + 1), relax.prim_value(unit), "int64"
    )
    return vector if dtype == "int64" else relax.op.astype(vector, dtype)
