"""The body of an operator that is converted as several operators: ONNX nodes and Relax expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import onnx
from onnx import helper
from tvm import ir, relax

from kiln.arrays import Array
from kiln.extents import Extent, shape_of
from kiln.frontend.onnx.node import reshaped
from kiln.frontend.onnx.value import Value
from kiln.frontend.symbols import Symbols


class Scope(Protocol):
    """The part of the importer that a body uses: the tensors so far, and the conversion of nodes."""

    symbols: Symbols

    def expression(self, name: str) -> Any:
        """The tensor `name` as a Relax expression."""

    def value(self, name: str) -> Value | None:
        """The value of tensor `name` if it is known before the model runs."""

    def bind(self, name: str, expression: Any) -> None:
        """Give `expression` the tensor name `name`."""

    def emit_te(self, compute: Callable[..., Any], *tensors: Any, hint: str) -> Any:
        """A tensor expression of `tensors`, bound to a variable."""

    def reads(self, name: str) -> bool:
        """Whether a node or the caller reads the tensor `name`."""

    def convert(self, node: onnx.NodeProto) -> None:
        """Convert a node of the default domain, in the form of opset `INNER_OPSET`."""


class Body:
    """Converts one node. Tensors are names; an omitted input is the empty name.

    An attribute that the conversion does not read is refused, so that none is ignored.
    """

    def __init__(self, scope: Scope, node: onnx.NodeProto) -> None:
        self._scope = scope
        self.node = node
        self.symbols = scope.symbols
        self._attributes = {
            attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute
        }
        self._read: set[str] = set()
        self._count = 0

    # Inputs, outputs and attributes of the node.

    def input(self, index: int) -> str:
        """The name of input `index`; empty if it is omitted."""
        return self.node.input[index] if index < len(self.node.input) else ""

    def has(self, index: int) -> bool:
        """Whether the node has input `index`."""
        return self.input(index) != ""

    def wants(self, index: int) -> bool:
        """Whether the model names output `index`."""
        return index < len(self.node.output) and self.node.output[index] != ""

    def reads(self, index: int) -> bool:
        """Whether the model reads output `index`."""
        return self.wants(index) and self._scope.reads(self.node.output[index])

    def attribute(self, name: str, default: Any = None) -> Any:
        """The value of an attribute; a text as str."""
        self._read.add(name)
        value = self._attributes.get(name, default)
        return value.decode(errors="replace") if isinstance(value, bytes) else value

    def required(self, name: str) -> Any:
        """The value of an attribute. Raises ValueError where it is missing."""
        value = self.attribute(name)
        if value is None:
            raise ValueError(f"its attribute '{name}' is missing")
        return value

    def only(self, name: str, *allowed: Any) -> Any:
        """An attribute that must have one of the values `allowed`, of which the first is the default."""
        value = self.attribute(name, allowed[0])
        if value not in allowed:
            listed = " or ".join(str(choice) for choice in allowed)
            raise ValueError(f"its attribute '{name}' is {value}, allowed: {listed}")
        return value

    def accept_attributes(self, *names: str) -> None:
        """Accept attributes that do not change the result."""
        self._read.update(names)

    def refuse_inputs(self, **positions: int) -> None:
        """Raise ValueError for inputs, by name and position, that are given but not supported."""
        for name, index in positions.items():
            if self.has(index):
                raise ValueError(f"its input '{name}' ('{self.input(index)}') is not supported")

    def finish(self, results: Sequence[str | None]) -> list[str | None]:
        """`results`, one tensor per output; raises ValueError for unread attributes and missing outputs."""
        unread = sorted(set(self._attributes) - self._read)
        if unread:
            raise ValueError(f"its attribute '{unread[0]}' is not supported")
        for index in range(len(self.node.output)):
            if self.reads(index) and (index >= len(results) or results[index] is None):
                raise ValueError(f"its output {index} ('{self.node.output[index]}') is not supported")
        return list(results)

    # Tensors.

    def tensor(self, name: str) -> Any:
        """A tensor as a Relax expression."""
        return self._scope.expression(name)

    def shape(self, name: str) -> list[Extent]:
        """The sizes of a tensor: ints, or TIR expressions."""
        return shape_of(self.tensor(name))

    def rank(self, name: str) -> int:
        """The number of axes of a tensor."""
        return len(self.shape(name))

    def dtype(self, name: str) -> str:
        """The element type of a tensor, in NumPy's terms."""
        return str(self.tensor(name).ty.dtype)

    def size(self, name: str, axis: int, meaning: str) -> int:
        """The size of an axis, which must be fixed. Raises ValueError, with its `meaning`, for another."""
        size = self.shape(name)[axis]
        if not isinstance(size, int):
            raise ValueError(
                f"{meaning} (axis {axis} of '{name}') is not known before the model runs: "
                "give it a fixed size"
            )
        return size

    def constant(self, name: str) -> Array | None:
        """The array of a tensor that is constant, else None."""
        value = self._scope.value(name)
        if value is not None:
            return value.numpy() if value.is_constant else None
        expression = self.tensor(name)
        if not isinstance(expression, ir.GenericConst):
            return None
        array: Array = expression.value.numpy()
        return array

    def extent(self, name: str) -> Extent | None:
        """The only element of a tensor as a size; None if it is not known at build time."""
        value = self._scope.value(name)
        elements = value.extents() if value is not None else None
        if elements is None:
            array = self.constant(name)
            elements = None if array is None else array.reshape(-1).tolist()
        return elements[0] if elements is not None and len(elements) == 1 else None

    # Parts of the body.

    def _new_name(self) -> str:
        self._count += 1
        return f"{self.node.output[0] or self.node.name}/{self.node.op_type}_{self._count}"

    def const(self, value: Any, dtype: str | None = None) -> str:
        """A constant tensor; without `dtype`, of the type that NumPy gives `value`."""
        array = np.asarray(value) if dtype is None else np.asarray(value, dtype)
        return self.bind(relax.const(array, str(array.dtype)))

    def bind(self, expression: Any) -> str:
        """Name a Relax expression."""
        name = self._new_name()
        self._scope.bind(name, expression)
        return name

    def bind_tensor(self, expression: Any) -> Any:
        """Bind a Relax expression to a variable."""
        return self.tensor(self.bind(expression))

    def emit_te(self, compute: Callable[..., Any], *tensors: Any, hint: str) -> Any:
        """A tensor expression of `tensors`, a kernel with the name `hint`."""
        return self._scope.emit_te(compute, *tensors, hint=hint)

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """The first result of an ONNX operator of the default domain."""
        return self.ops(op_type, 1, *inputs, **attributes)[0]

    def ops(self, op_type: str, count: int, *inputs: str, **attributes: Any) -> list[str]:
        """The `count` results of an ONNX operator; attributes that are None are left out."""
        node = self._inner_node(op_type, count, inputs, attributes)
        self._scope.convert(node)
        return list(node.output)

    def _inner_node(
        self, op_type: str, count: int, inputs: Sequence[str], attributes: dict[str, Any]
    ) -> onnx.NodeProto:
        """A node of the default domain with new names for its results, without attributes that are None."""
        names = [self._new_name() for _ in range(count)]
        present = {key: value for key, value in attributes.items() if value is not None}
        return helper.make_node(op_type, list(inputs), names, self.node.name, **present)

    def like(self, name: str, value: float) -> str:
        """A constant scalar of the element type of tensor `name`."""
        return self.const(value, self.dtype(name))

    def reshape(self, name: str, sizes: Sequence[Extent]) -> str:
        """A tensor with the sizes `sizes`."""
        return self.bind(reshaped(self.tensor(name), sizes))

    def transpose(self, name: str, axes: Sequence[int]) -> str:
        """A tensor with its axes in the order `axes`."""
        return self.op("Transpose", name, perm=list(axes))

    def channels_first(self, name: str) -> str:
        """A tensor with its last axis, the channels, as second."""
        rank = self.rank(name)
        return self.transpose(name, [0, rank - 1, *range(1, rank - 1)])

    def channels_last(self, name: str) -> str:
        """A tensor with its second axis, the channels, as last."""
        rank = self.rank(name)
        return self.transpose(name, [0, *range(2, rank), 1])

    def cast(self, name: str, dtype: str) -> str:
        """A tensor in another element type."""
        if self.dtype(name) == dtype:
            return name
        return self.op("Cast", name, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


Expansion = Callable[[Body], Sequence[str | None]]
INNER_OPSET = 22  # opset of the nodes of bodies: axes are inputs, as of opset 18
