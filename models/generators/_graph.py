"""Writes an ONNX graph as PyTorch's exporter does: NCHW, a convolution and its batch norm as two nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

Array = npt.NDArray[Any]
# By name the type and the shape.
Ports = Mapping[str, tuple[str, Sequence[int | str]]]

# Both fixed, so that a newer onnx package writes the same bytes.
_OPSET = 17
_IR_VERSION = 8


class Graph:
    """An ONNX graph under construction. A method that adds a tensor returns the tensor's name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, Array] = {}

    def constant(self, name: str, value: Array) -> str:
        """Add the constant `value` as an initializer."""
        self._constants[name] = np.asarray(value, order="C")
        return name

    def node(self, op: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        """Add a node with one output; node and output are called `name`."""
        self._nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def conv(
        self,
        x: str,
        name: str,
        weight: Array,
        stride: int = 1,
        pads: tuple[int, int] = (0, 0),
        groups: int = 1,
    ) -> str:
        """Add a convolution without bias.

        `weight`: (out, in / groups, kh, kw); `pads`: padding before and after both spatial axes.
        """
        before, after = pads
        return self.node(
            "Conv",
            [x, self.constant(f"{name}.weight", weight)],
            name,
            kernel_shape=list(weight.shape[2:]),
            strides=[stride, stride],
            pads=[before, before, after, after],
            group=groups,
            dilations=[1, 1],
        )

    def batch_norm(self, x: str, name: str, values: Sequence[Array], epsilon: float) -> str:
        """Add a batch normalisation; `values` are scale, bias, mean and variance, each (channels)."""
        parts = ("weight", "bias", "running_mean", "running_var")
        names = [self.constant(f"{name}.{part}", value) for part, value in zip(parts, values, strict=True)]
        return self.node("BatchNormalization", [x, *names], name, epsilon=epsilon, momentum=0.9)

    def relu(self, x: str, name: str) -> str:
        """Add max(x, 0)."""
        return self.node("Relu", [x], name)

    def relu6(self, x: str, name: str) -> str:
        """Add min(max(x, 0), 6)."""
        low = self.constant("zero", np.array(0.0, np.float32))
        return self.node("Clip", [x, low, self.constant("six", np.array(6.0, np.float32))], name)

    def classifier(self, x: str, name: str, weight: Array, bias: Array) -> str:
        """Add global average pooling and a dense layer; `weight`: (classes, channels). Returns `logits`."""
        pooled = self.node("GlobalAveragePool", [x], f"{name}.pool")
        flat = self.node("Flatten", [pooled], f"{name}.flatten", axis=1)
        names = [self.constant(f"{name}.weight", weight), self.constant(f"{name}.bias", bias)]
        return self.node("Gemm", [flat, *names], "logits", transB=1)

    def to_bytes(self, x: Sequence[int | str], y: str, classes: int) -> bytes:
        """The model file, with one float32 input `input` of shape `x` and one output `y` (batch, classes)."""
        return self.file({"input": ("float32", x)}, {y: ("float32", [x[0], classes])})

    def file(self, inputs: Ports, outputs: Ports) -> bytes:
        """The model file, with inputs and outputs of these types and shapes; names are dynamic dimensions."""
        graph = helper.make_graph(
            self._nodes,
            self._name,
            [_info(name, *port) for name, port in inputs.items()],
            [_info(name, *port) for name, port in outputs.items()],
            [numpy_helper.from_array(value, name) for name, value in self._constants.items()],
        )
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", _OPSET)], producer_name="kiln"
        )
        model.ir_version = _IR_VERSION
        onnx.checker.check_model(model)
        return bytes(model.SerializeToString(deterministic=True))


def _info(name: str, dtype: str, shape: Sequence[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), list(shape))
