"""com.microsoft.DynamicQuantizeLSTM as a Scan: ONNX Runtime's quantize_dynamic writes one for each LSTM.

Weights are 8-bit integers. The input is quantised as a whole, and the hidden state in each step, with the
scale and the zero point of what it holds; both products are sums of integers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from kiln.arrays import Array
from kiln.frontend.onnx.attributes import graphs, set_nodes

NAME = "DynamicQuantizeLSTM"
_INPUTS = (
    "X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P",
    "W_scale", "W_zero_point", "R_scale", "R_zero_point",
)  # fmt: skip
_CONSTANT = ("W", "R", "B", "W_scale", "W_zero_point", "R_scale", "R_zero_point")
# By direction of a layer, for each of its sides, 1 if it goes from the last element to the first.
_SIDES = {b"forward": (0,), b"reverse": (1,), b"bidirectional": (0, 1)}


def as_scans(path: Path, model: onnx.ModelProto) -> None:
    """Replace the nodes of `model`, and of the graphs in it, in place. Raises KilnError as `graphs`.

    A node with anything that `obstacle` names stays; the importer refuses it with that reason.
    """
    nested = list(graphs(path, model))
    weights = {weight.name: weight for graph in nested for weight in graph.initializer}
    for graph in reversed(nested):  # inner graphs first: outer nodes are copied
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            fits = node.op_type == NAME and not obstacle(node, weights)
            nodes += _QuantisedLayer(node, weights).nodes() if fits else [node]
        if len(nodes) > len(graph.node):
            set_nodes(graph, nodes)


def obstacle(node: onnx.NodeProto, constants: Mapping[str, Any] | None = None) -> str:
    """The reason why a node cannot be replaced, with a remedy; empty if it can.

    `constants`: the constant tensors of the model, by name; None: those that the node needs are not there.
    """
    attributes, input_names = _attributes(node), _inputs(node)
    sides = _SIDES.get(attributes.get("direction", b"forward"), ())
    activations = [value.decode().lower() for value in attributes.get("activations", [])]
    usual = ["sigmoid", "tanh", "tanh"] * len(sides)
    inputs = [name for name in ("sequence_lens", "P") if name in input_names]
    reasons = [f"its input '{name}' ('{input_names[name]}') is not supported" for name in inputs]
    set_attributes = [name for name in ("clip", "input_forget") if attributes.get(name)]
    reasons += [f"its attribute '{name}' is set, allowed: 0" for name in set_attributes]
    if activations not in ([], usual):
        reasons.append(f"its activations are {', '.join(activations)}, allowed: {', '.join(usual)}")
    if constants is None or any(
        input_names.get(name) not in constants for name in _CONSTANT if name in input_names
    ):
        reasons.append("its weights or their scales are not constants")
    way_round = "quantise the model without it (quantize_dynamic(…, op_types_to_quantize=['MatMul', …]))"
    return f"{reasons[0]}: {way_round}" if reasons else ""


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def _inputs(node: onnx.NodeProto) -> dict[str, str]:
    """The inputs that are given, by their name in the operator's definition."""
    return {name: value for name, value in zip(_INPUTS, node.input, strict=False) if value}


class _Nodes:
    """Nodes that are written one after the other; their tensors have names that begin with `prefix`."""

    def __init__(self, prefix: str) -> None:
        self.prefix, self.nodes, self._count = prefix, list[onnx.NodeProto](), 0

    def results(self, kind: str, inputs: Sequence[str], count: int, **attributes: Any) -> list[str]:
        """Write a node; returns the names of its outputs."""
        self._count += 1
        names = [f"{self.prefix}/{kind}{self._count}.{number}" for number in range(count)]
        self.nodes.append(helper.make_node(kind, inputs, names, name=names[0], **attributes))
        return names

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Write a node of one output; returns its name."""
        return self.results(kind, inputs, 1, **attributes)[0]

    def constant(self, array: Array) -> str:
        """Write a constant; returns its name."""
        return self.op("Constant", value=numpy_helper.from_array(array))

    def product(self, data: Sequence[str], weights: Array, scale: Array, zero: Array) -> str:
        """Write the product of a quantised tensor, its scale and its zero point with constant weights."""
        total = self.op("MatMulInteger", data[0], self.constant(weights), data[2], self.constant(zero))
        both = self.op("Mul", data[1], self.constant(scale))
        return self.op("Mul", self.op("Cast", total, to=TensorProto.FLOAT), both)


class _QuantisedLayer:
    """Writes the nodes that one node becomes."""

    def __init__(self, node: onnx.NodeProto, weights: Mapping[str, onnx.TensorProto]) -> None:
        self.node, self.given, self.attributes = node, _inputs(node), _attributes(node)
        self.hidden = int(self.attributes["hidden_size"])
        self.sides = _SIDES[self.attributes.get("direction", b"forward")]
        self.constants = {
            name: numpy_helper.to_array(weights[self.given[name]]) for name in _CONSTANT if name in self.given
        }
        self.prefix = next(name for name in node.output if name)
        self.written = _Nodes(self.prefix)

    def nodes(self) -> list[onnx.NodeProto]:
        """The nodes, which bind the outputs of the original one."""
        write = self.written
        data = write.results("DynamicQuantizeLinear", [self.given["X"]], 3)
        sides = [self._side(number, data) for number in range(len(self.sides))]
        shapes = [0, 1, -1, self.hidden], [1, -1, self.hidden], [1, -1, self.hidden]
        for output, name in enumerate(self.node.output):
            if name:
                shape = write.constant(np.array(shapes[output], "int64"))
                parts = [write.op("Reshape", side[output], shape) for side in sides]
                axis = 1 if output == 0 else 0
                write.nodes.append(helper.make_node("Concat", parts, [name], name=f"{name}/sides", axis=axis))
        return write.nodes

    def _side(self, number: int, data: Sequence[str]) -> tuple[str, str, str]:
        """Write one direction; returns the hidden states of all steps, the last one, and the last cell."""
        write = self.written
        gate_inputs = self._product(write, data, "W", number)
        if "B" in self.constants:
            bias = self.constants["B"][number].reshape(2, -1).sum(0)
            gate_inputs = write.op("Add", gate_inputs, write.constant(bias))
        states = [self._state(name, number) for name in ("initial_h", "initial_c")]
        backwards = [self.sides[number]]
        h, c, steps = write.results(
            "Scan", [*states, gate_inputs], 3, body=self._step(number), num_scan_inputs=1,
            scan_input_directions=backwards, scan_output_directions=backwards,
        )  # fmt: skip
        return steps, h, c

    def _state(self, name: str, number: int) -> str:
        """Write the hidden state or the cell before the first step, (batch, hidden)."""
        write = self.written
        if name in self.given:
            limits = (write.constant(np.array([value], "int64")) for value in (number, number + 1, 0))
            part = write.op("Slice", self.given[name], *limits)
            return write.op("Reshape", part, write.constant(np.array([-1, self.hidden], "int64")))
        batch = write.op("Gather", write.op("Shape", self.given["X"]), write.constant(np.array([1], "int64")))
        shape = write.op("Concat", batch, write.constant(np.array([self.hidden], "int64")), axis=0)
        return write.op("ConstantOfShape", shape)

    def _product(self, write: _Nodes, data: Sequence[str], name: str, number: int) -> str:
        values = (self.constants[f"{name}{part}"][number] for part in ("", "_scale", "_zero_point"))
        return write.product(data, *values)

    def _step(self, number: int) -> onnx.GraphProto:
        """The graph of one step, from hidden state, cell and what comes from the input."""
        write = _Nodes(f"{self.prefix}/step{number}")
        h, c, given = (f"{write.prefix}/{name}" for name in ("h", "c", "given"))
        state = write.results("DynamicQuantizeLinear", [h], 3)
        sums = write.op("Add", given, self._product(write, state, "R", number))
        gates = []
        for gate, function in enumerate(("Sigmoid", "Sigmoid", "Sigmoid", "Tanh")):  # i, o, f, c
            limits = (gate * self.hidden, (gate + 1) * self.hidden, 1)
            part = write.op("Slice", sums, *(write.constant(np.array([value], "int64")) for value in limits))
            gates.append(write.op(function, part))
        i, o, f, new = gates
        cell = write.op("Add", write.op("Mul", f, c), write.op("Mul", i, new))
        hidden = write.op("Mul", o, write.op("Tanh", cell))
        row = write.op("Identity", hidden)
        ports, results = (
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
            for names in ((h, c, given), (hidden, cell, row))
        )
        return helper.make_graph(write.nodes, write.prefix, ports, results)
