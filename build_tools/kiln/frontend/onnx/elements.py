"""Sequences and optional values among the inputs and outputs of an ONNX graph, as tensors.

A bundle reads and writes tensors. With a number of elements, a sequence `x` becomes the tensors
`x_0`, `x_1`, …; an optional value becomes the tensor `x_0`, or is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx
from onnx import helper

from kiln.config.check import choices
from kiln.errors import KilnError
from kiln.frontend.onnx.sequences import MOST_ELEMENTS
from kiln.frontend.onnx.types import content_of


def spread_sequences(path: Path, model: onnx.ModelProto, counts: Mapping[str, int]) -> None:
    """Replace inputs and outputs of `model` that are sequences or optional values by tensors, in place.

    `counts`: by name, the number of elements of a sequence or an optional sequence; for another optional
    value 1, or 0 where it is absent. Raises KilnError for other names and numbers.
    """
    graph = model.graph
    weights = {tensor.name for tensor in graph.initializer}
    ports = {value.name: value for value in (*graph.input, *graph.output) if value.name not in weights}
    for name, number in counts.items():
        if name not in ports:
            raise KilnError(
                f"{path}: cut.elements: no input or output is called '{name}'{choices(name, ports)}"
            )
        if ports[name].type.WhichOneof("value") not in ("sequence_type", "optional_type"):
            raise KilnError(f"{path}: cut.elements: '{name}' is a tensor; leave it out")
        if not 0 <= number <= MOST_ELEMENTS:
            raise KilnError(f"{path}: cut.elements: {name}: {number}, allowed: 0..{MOST_ELEMENTS}")
    inputs, before, outputs, after = [], [], [], []
    for value in graph.input:
        count = counts.get(value.name)
        values, nodes = ([value], []) if count is None else _elements_of_input(path, value, count)
        inputs += values
        before += nodes
    for value in graph.output:
        count = counts.get(value.name)
        values, nodes = ([value], []) if count is None else _elements_of_output(path, value, count)
        outputs += values
        after += nodes
    names_in_use = [name for node in graph.node for name in (*node.output, *node.input)] + list(ports)
    for value in (*inputs, *outputs):
        if value.name not in ports and value.name in names_in_use:
            raise KilnError(
                f"{path}: cut.elements: an element would be called '{value.name}', as another tensor is; "
                "rename that in the model"
            )
    nodes = [*before, *graph.node, *after]
    # The types of inner tensors in the file: ONNX's inference does not find the names of all their sizes.
    types = list(graph.value_info)
    graph.CopyFrom(helper.make_graph(nodes, graph.name, inputs, outputs, graph.initializer, value_info=types))


def _tensor(path: Path, name: str, kind: onnx.TypeProto, element: str) -> onnx.ValueInfoProto:
    """The tensor `element` of the type that `kind`, the type of `name`, contains."""
    kind = content_of(kind)
    if kind.WhichOneof("value") != "tensor_type":
        raise KilnError(f"{path}: cut.elements: '{name}' contains no tensors, but {kind.WhichOneof('value')}")
    return onnx.ValueInfoProto(name=element, type=kind)


def _is_sequence(kind: onnx.TypeProto) -> bool:
    """Whether a type is a sequence, or an optional one."""
    if kind.HasField("optional_type"):
        return bool(kind.optional_type.elem_type.HasField("sequence_type"))
    return bool(kind.HasField("sequence_type"))


def _elements_of_input(
    path: Path, value: onnx.ValueInfoProto, count: int
) -> tuple[list[onnx.ValueInfoProto], list[onnx.NodeProto]]:
    """The `count` tensors that replace the input `value`, and the nodes that build the input from them."""
    name, kind = value.name, value.type
    elements = _elements(path, name, kind, count)
    names = [element.name for element in elements]
    if not kind.HasField("optional_type"):
        if elements:
            return elements, [helper.make_node("SequenceConstruct", names, [name])]
        dtype = _tensor(path, name, kind, name).type.tensor_type.elem_type
        return [], [helper.make_node("SequenceEmpty", [], [name], dtype=dtype)]
    if not elements:
        return [], [helper.make_node("Optional", [], [name], type=kind.optional_type.elem_type)]
    if not _is_sequence(kind):
        return elements, [helper.make_node("Optional", names, [name])]
    nodes = [helper.make_node("SequenceConstruct", names, [f"{name}_value"])]
    return elements, [*nodes, helper.make_node("Optional", [f"{name}_value"], [name])]


def _elements_of_output(
    path: Path, value: onnx.ValueInfoProto, count: int
) -> tuple[list[onnx.ValueInfoProto], list[onnx.NodeProto]]:
    """The `count` tensors that replace the output `value`, and the nodes that read them from the output."""
    name, kind = value.name, value.type
    elements, nodes = _elements(path, name, kind, count), []
    if not _is_sequence(kind):
        return elements, [
            helper.make_node("OptionalGetElement", [name], [element.name]) for element in elements
        ]
    if kind.HasField("optional_type") and elements:
        nodes.append(helper.make_node("OptionalGetElement", [name], [f"{name}_value"]))
    source = f"{name}_value" if nodes else name
    for index, element in enumerate(elements):
        position = f"{name}_place_{index}"
        number = helper.make_tensor(position, onnx.TensorProto.INT64, [], [index])
        nodes.append(helper.make_node("Constant", [], [position], value=number))
        nodes.append(helper.make_node("SequenceAt", [source, position], [element.name]))
    return elements, nodes


def _elements(path: Path, name: str, kind: onnx.TypeProto, count: int) -> list[onnx.ValueInfoProto]:
    """The tensors that replace the input or output `name`. Raises KilnError for too many."""
    if count > 1 and not _is_sequence(kind):
        raise KilnError(f"{path}: cut.elements: {name}: {count}, allowed: 1, or 0 if it is absent")
    return [_tensor(path, name, kind, f"{name}_{index}") for index in range(count)]
