"""References of models with the user's own operators: a runtime, and the NumPy functions of these operators.

No runtime knows the user's operators, so the graph is cut at them. A part has the nodes after the same number
of own operators on the path from the inputs, and runs in the runtime as a whole graph would.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
from onnx import helper

from kiln.arrays import Array
from kiln.errors import KilnError
from kiln.frontend.onnx import order
from kiln.frontend.onnx.attributes import describe, graphs, graphs_in
from kiln.frontend.onnx.functions import inline_functions
from kiln.frontend.onnx.order import sort_nodes
from kiln.frontend.onnx.own_nodes import adopt_own, attributes_of, is_own, own_operators
from kiln.golden.own_step import OwnStep
from kiln.operators.registry import typed_attributes

Session = Callable[[Mapping[str, Array]], list[Array]]
OpenSession = Callable[[bytes], Session]


@dataclass
class OnnxPart:
    """Nodes that a runtime computes, and the own operators after them."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    own_steps: list[OwnStep] = field(default_factory=list)


class OnnxParts:
    """An ONNX model with own operators, as parts. Raises KilnError for an own operator in a nested graph."""

    def __init__(self, path: Path, model: onnx.ModelProto, open_session: OpenSession) -> None:
        self._path, self._model, self._open = path, model, open_session
        weights = {item.name for item in model.graph.initializer}
        self.inputs = [value.name for value in model.graph.input if value.name not in weights]
        self._outputs = [value.name for value in model.graph.output]
        self._parts = self._split()
        self._sessions: dict[int, tuple[Session, list[str]]] = {}

    def _split(self) -> list[OnnxPart]:
        """The parts in order: a node belongs to the first one before which all of its inputs are known."""
        operators, model_parts = own_operators(), [OnnxPart()]
        ready: dict[str, int] = {}  # tensor → the part after whose nodes it is known
        for node in self._model.graph.node:
            for graph in graphs_in(node):
                if any(is_own(node) for node in _all_nodes(graph)):
                    raise KilnError(
                        f"{self._path}: {describe(node)}: its nested graph has an operator "
                        "of your own, for which there is no reference: move it out of the nested graph"
                    )
            number = max((ready.get(name, 0) for name in order.reads(node)), default=0)
            if is_own(node):
                loaded = operators[node.domain, node.op_type]
                attributes = typed_attributes(loaded, attributes_of(node))
                model_parts[number].own_steps.append(
                    OwnStep(
                        loaded,
                        list(node.input),
                        list(node.output),
                        attributes,
                        [None] * (len(node.input) + len(node.output)),
                    )
                )
                number += 1
            else:
                model_parts[number].nodes.append(node)
            if number == len(model_parts):
                model_parts.append(OnnxPart())
            ready.update(dict.fromkeys(filter(None, node.output), number))
        return model_parts

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs for `inputs`, both in the model's order."""
        values = dict(zip(self.inputs, inputs, strict=True))
        for item in self._model.graph.initializer:
            if item.name not in values:
                values[item.name] = onnx.numpy_helper.to_array(item)
        for number, model_part in enumerate(self._parts):
            if model_part.nodes:
                session, names = self._session(number, values)
                values.update(zip(names, session(values), strict=True))
            for step in model_part.own_steps:
                step.run(values)
        return [values[name] for name in self._outputs]

    def _session(self, number: int, values: Mapping[str, Array]) -> tuple[Session, list[str]]:
        """A session of part `number` and the names of its results; opened with the types in `values`."""
        if number in self._sessions:
            return self._sessions[number]
        nodes = self._parts[number].nodes
        results = {name for node in nodes for name in node.output if name}
        read = {name for node in nodes for name in order.reads(node)} - results
        read_later = {
            name for part in self._parts[number + 1 :] for node in part.nodes for name in order.reads(node)
        }
        read_later |= {
            name for part in self._parts[number:] for step in part.own_steps for name in step.inputs
        }
        names = sorted(results & (read_later | set(self._outputs)))
        weights = [item for item in self._model.graph.initializer if item.name in read]
        weight_names = {item.name for item in weights}
        infos = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(values[name].dtype), [None] * values[name].ndim
            )
            for name in sorted(read - weight_names)
        ]
        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        model.graph.Clear()
        empty = [helper.make_empty_tensor_value_info(name) for name in names]
        model.graph.CopyFrom(helper.make_graph(nodes, "part", infos, empty, weights))
        session = self._open(model.SerializeToString())

        def run(tensors: Mapping[str, Array]) -> list[Array]:
            return session({info.name: tensors[info.name] for info in infos})

        self._sessions[number] = run, names
        return run, names


def _all_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    nested = [item.g for node in graph.node for item in node.attribute if item.HasField("g")]
    return [*graph.node, *(node for graph_inside in nested for node in _all_nodes(graph_inside))]


def onnx_parts(path: Path, model: onnx.ModelProto, open_session: OpenSession) -> OnnxParts | None:
    """The parts of `model`, read from `path` without external data; None if it has no own operators."""
    if not own_operators():
        return None
    inlined = onnx.ModelProto()
    inlined.CopyFrom(model)
    adopt_own(path, inlined)
    if not any(is_own(node) for body in (inlined, *inlined.functions) for node in _nodes_of(path, body)):
        return None
    onnx.load_external_data_for_model(inlined, str(path.parent))
    inlined = inline_functions(path, inlined)
    sort_nodes(path, inlined)
    return OnnxParts(path, inlined, open_session)


def _nodes_of(path: Path, body: Any) -> list[onnx.NodeProto]:
    if isinstance(body, onnx.ModelProto):
        return [node for graph in graphs(path, body) for node in graph.node]
    return list(body.node)
