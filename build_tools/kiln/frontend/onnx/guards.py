"""Guards of a conversion: attributes and inputs that a converter ignores, and results of another type.

A converter that ignores an attribute, as several of TVM's do, computes another function than the node's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx
from onnx import helper
from tvm.relax.frontend.onnx import onnx_frontend

from kiln.extents import shape_of
from kiln.frontend.onnx.node import Node
from kiln.onnx_domains import domain_of

# Attributes that repeat an input, or that only restrict a result which nothing reads.
_REDUNDANT = {
    ("Conv", "kernel_shape"),
    ("ConvTranspose", "kernel_shape"),
    ("DeformConv", "kernel_shape"),
    ("MaxPool", "storage_order"),  # of the second result
    ("BatchNormalization", "momentum"),  # of training
    ("BatchNormalization", "spatial"),
    ("BatchNormalization", "is_test"),
    ("BatchNormalization", "consumed_inputs"),
    ("Dropout", "is_test"),
    ("Resize", "cubic_coeff_a"),  # of mode cubic, and so on; the converter reads what its mode needs
    ("Resize", "exclude_outside"),
    ("Resize", "extrapolation_value"),
    ("Split", "num_outputs"),  # the node has that many outputs
    ("Dropout", "ratio"),
    ("Dropout", "seed"),
    ("Cast", "saturate"),  # of casts to 8-bit floats, which are refused
    ("CastLike", "saturate"),
}
# Inputs that matter in training only, or whose elements the importer reads from the node itself.
_UNUSED_INPUTS = {("Dropout", 1), ("Dropout", 2)}
# Inputs that TVM's converters read as numbers, by operator.
_NUMBERS = {"Split": 1, "TopK": 1}
# Operators for which ONNX 1.23 infers wrong shapes: of a one-sided STFT, all frequencies.
# Sizes of a Resize by scales in float64: 10 * 0.7 is 6 there, but 7 in float32, as in ONNX Runtime.
_INFERRED_WRONGLY = {"Resize", "STFT", "Upsample"}


class Attributes(dict[str, Any]):
    """The attributes of a node; `read`: the names of the attributes that a converter has read."""

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        super().__init__(attributes)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.read.add(str(key))
        return super().__contains__(key)

    def __delitem__(self, key: str) -> None:
        self.read.add(key)
        super().__delitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """The value of attribute `key`, or `default`."""
        self.read.add(key)
        return super().get(key, default)

    def pop(self, key: str, *default: Any) -> Any:
        """Remove attribute `key` and return its value, or `default`."""
        self.read.add(key)
        return super().pop(key, *default)

    def items(self) -> Any:
        """All attributes: reads all of them."""
        self.read.update(self.keys())
        return super().items()

    def copy(self) -> Attributes:
        """A copy; names that are read from it are recorded here, too."""
        copied = Attributes(dict.copy(self))
        copied.read = self.read
        return copied


class Inputs(onnx_frontend.onnx_input):  # type: ignore[misc]  # tvm is untyped
    """The inputs of a node in the type that TVM's converters expect; `read` has the positions read so far."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        super().__init__(inputs)
        self.read: set[int] = set()

    def __getitem__(self, index_or_slice: Any) -> Any:
        if isinstance(index_or_slice, slice):
            return [
                self[index]
                for index in range(len(self) if index_or_slice.stop is None else index_or_slice.stop)[
                    index_or_slice
                ]
            ]
        self.read.add(index_or_slice if index_or_slice >= 0 else len(self) + index_or_slice)
        return self.at(index_or_slice) if index_or_slice < len(self) else None

    def __iter__(self) -> Iterator[Any]:
        self.read.update(range(len(self)))
        return iter([self.at(index) for index in range(len(self))])

    def at(self, index: int) -> Any:
        """Input `index`, without recording that it is read."""
        return list.__getitem__(self, index)


def check_read(node: onnx.NodeProto, attributes: Attributes, inputs: Inputs | None, opset: int) -> None:
    """Raise ValueError for an attribute other than its default, or an input, that no converter has read.

    `inputs`: None for a converter of Kiln's own, whose inputs are optional only where the operator's schema
    has them so.
    """
    schema = onnx.defs.get_schema(node.op_type, opset, domain_of(node))
    for attribute in node.attribute:
        if attribute.name in attributes.read or (node.op_type, attribute.name) in _REDUNDANT:
            continue
        definition = schema.attributes.get(attribute.name)
        default = definition.default_value if definition is not None else onnx.AttributeProto()
        value = helper.get_attribute_value(attribute)
        if definition is not None and default.type and helper.get_attribute_value(default) == value:
            continue
        value_text = value.decode(errors="replace") if isinstance(value, bytes) else value
        allowed = helper.get_attribute_value(default) if default.type else "none"
        allowed_text = allowed.decode() if isinstance(allowed, bytes) else allowed
        raise ValueError(
            f"attribute '{attribute.name}' is {value_text}, which is not supported, allowed: {allowed_text}"
        )
    for index in range(len(node.input) if inputs is not None else 0):
        assert inputs is not None
        unread = index not in inputs.read and (node.op_type, index) not in _UNUSED_INPUTS
        if node.input[index] and unread and inputs.at(index) is not None:
            raise ValueError(
                f"its input {index} ('{node.input[index]}') is not supported, it must be left out"
            )


def check_numbers(node: Node) -> None:
    """Raise ValueError if an input of `node` that TVM's converter reads as numbers depends on sizes."""
    index = _NUMBERS.get(node.op)
    if index is None or not node.has(index) or node.constant(index) is not None:
        return
    raise ValueError(f"its input '{node.inputs[index]}' depends on dynamic sizes, allowed are fixed numbers")


class Types:
    """The types of a graph's tensors as ONNX infers them."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._types = {
            value.name: value.type.tensor_type
            for value in (*graph.value_info, *graph.output)
            if value.type.WhichOneof("value") == "tensor_type"
        }

    def check(self, name: str, result: Any, operator: str = "") -> None:
        """Raise ValueError if Relax expression `result`, converted for tensor `name`, has another type.

        `operator`: the operator that computes it.
        """
        inferred = self._types.get(name)
        if inferred is None or getattr(result.ty, "shape", None) is None:
            return
        ours, dtype = shape_of(result), str(result.ty.dtype)
        if inferred.elem_type:
            theirs = _dtype(inferred.elem_type)
            if theirs != dtype:
                raise ValueError(f"its result '{name}' is {dtype} by its conversion, but {theirs} by ONNX")
        if not inferred.HasField("shape") or operator in _INFERRED_WRONGLY:
            return
        dims = [dim.dim_value if dim.HasField("dim_value") else None for dim in inferred.shape.dim]
        differ = len(dims) != len(ours) or any(
            isinstance(a, int) and b is not None and a != b for a, b in zip(ours, dims, strict=False)
        )
        if differ:
            our_sizes = [str(dim) if not isinstance(dim, int) else dim for dim in ours]
            their_sizes = ["?" if dim is None else dim for dim in dims]
            raise ValueError(
                f"its result '{name}' has shape {our_sizes} by its conversion, but {their_sizes} by ONNX"
            )


def _dtype(number: int) -> str:
    """The name in Relax of an ONNX element type."""
    return str(helper.tensor_dtype_to_np_dtype(number))
