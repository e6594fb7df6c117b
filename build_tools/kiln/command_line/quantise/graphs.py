"""An ONNX graph with its edges: who produces and who reads a tensor, constants as arrays, shapes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from kiln.arrays import Array
from kiln.frontend.onnx.order import reads

LIMITS = ("Relu", "Clip")
# Operators with weights: those that a search keeps in float, and whose biases are corrected.
WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")


class OnnxGraph:
    """A model that passes change: constants get new names with it, so that nodes never share a change.

    `outputs`: tensors that have to keep their values for readers outside of `nodes`: the model's outputs, and
    what graphs nested in nodes (If, Loop) read.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.nodes: Sequence[Any] = model.graph.node
        self.producer = {name: node for node in self.nodes for name in node.output}
        self.readers: dict[str, list[tuple[Any, int]]] = {}
        for node in self.nodes:
            for index, name in enumerate(node.input):
                self.readers.setdefault(name, []).append((node, index))
        self.outputs = {value.name for value in model.graph.output}
        nested_reads = {name for node in self.nodes for name in reads(node) - set(node.input)}
        self.outputs |= nested_reads
        self._nested_reads = nested_reads
        self._tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        for node in self.nodes:
            if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
                self._tensors[node.output[0]] = node.attribute[0].t
        self._arrays: dict[str, Array] = {}
        values = (*model.graph.value_info, *model.graph.input, *model.graph.output)
        self._shapes = {value.name: value.type.tensor_type.shape for value in values}

    def kept_limits(self, floats: Collection[str]) -> list[str]:
        """Names of the limits (Relu, Clip) that stay nodes of their own.

        `floats`: tensors that are not rounded.

        onnxruntime.quantization removes a limit whose result it rounds, as the least and the greatest level
        are limits as well. They are none for a tensor that is not rounded or that nested graphs read, and
        those of a Clip without 0 in its range are further apart, since 0 is always a level.
        """
        unrounded = self._nested_reads.union(floats)
        return [
            str(node.name) for node in self.nodes
            if node.op_type in LIMITS and (unrounded.intersection(node.output) or self._is_without_zero(node))
        ]  # fmt: skip

    def _is_without_zero(self, node: Any) -> bool:
        """Whether 0 is, or may be, outside of the limits of a Clip."""
        if node.op_type != "Clip":
            return False
        limits = [attribute(node, "min"), attribute(node, "max")]
        for number, name in enumerate(node.input[1:]):
            value = self.constant(name) if name else None
            if name and value is None:
                return True
            limits[number] = None if value is None else float(value.item())
        low, high = limits
        return (low is not None and low > 0) or (high is not None and high < 0)

    def constant(self, name: str) -> Array | None:
        """The value of a constant; None for a tensor that is computed, and for an absent operand."""
        if name not in self._tensors:
            return None
        if name not in self._arrays:
            self._arrays[name] = numpy_helper.to_array(self._tensors[name])
        return self._arrays[name]

    def shape(self, name: str) -> tuple[int | None, ...] | None:
        """Sizes of a computed tensor, None for dynamic ones; None where even the rank is unknown."""
        value = self.constant(name)
        if value is not None:
            return value.shape
        if name not in self._shapes:
            return None
        return tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in self._shapes[name].dim)

    def replace(self, node: Any, index: int, value: Array) -> None:
        """Make operand `index` of `node` the constant `value`, under a name of its own."""
        while len(node.input) <= index:
            node.input.append("")
        stem = (node.input[index] or f"{node.output[0]}.bias").split("~")[0]
        name = f"{stem}~{len(self._tensors)}"
        self.model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        self._tensors[name] = self.model.graph.initializer[-1]
        self._arrays[name] = value
        node.input[index] = name

    def weight(self, node: Any) -> Array | None:
        """The constant second operand of an operator with weights; None for another operator."""
        if node.op_type not in WEIGHTED or len(node.input) < 2:
            return None
        return self.constant(node.input[1])


def drop_unused(model: onnx.ModelProto) -> None:
    """Remove the initialisers that no node, and no graph nested in one, reads."""
    read = {name for node in model.graph.node for name in reads(node)}
    read |= {value.name for value in model.graph.output}
    for index in reversed(range(len(model.graph.initializer))):
        if model.graph.initializer[index].name not in read:
            del model.graph.initializer[index]


def attribute(node: Any, name: str, default: Any = None) -> Any:
    """The value of an attribute of `node`."""
    entry = next((entry for entry in node.attribute if entry.name == name), None)
    return default if entry is None else onnx.helper.get_attribute_value(entry)
