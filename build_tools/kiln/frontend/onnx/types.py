"""Checks of the element types of an ONNX graph's inputs, outputs and inner tensors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx

from kiln.errors import KilnError
from kiln.frontend.onnx.attributes import describe
from kiln.frontend.onnx.narrow_types import NARROW_TYPES

_PORTS = {"FLOAT", "DOUBLE", "FLOAT16", "BOOL", *(f"{u}INT{n}" for u in ("", "U") for n in (8, 16, 32, 64))}
_PORTS.add("BFLOAT16")
_INNER = set(_PORTS)
_NAMES = {number: name for name, number in onnx.TensorProto.DataType.items()}


def is_typed(kind: onnx.TypeProto) -> bool:
    """Whether a TypeProto states a type; a tensor's needs an element type, which is a number above 0."""
    return kind.WhichOneof("value") is not None and (
        not kind.HasField("tensor_type") or bool(kind.tensor_type.elem_type)
    )


def check_ports(
    path: Path, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto],
    nodes: Sequence[onnx.NodeProto] = (),
) -> None:  # fmt: skip
    """Raise KilnError for an input or output that is not a tensor, or whose element type is unsupported.

    `nodes`: the nodes of the graph, from which the message derives a remedy.
    """
    for role, values in (("input", inputs), ("output", outputs)):
        for value in values:
            kind = value.type.WhichOneof("value") or "no type"
            name = kind.removesuffix("_type")
            if kind == "tensor_type":
                name = _type_name(value.type.tensor_type.elem_type)
                if value.type.tensor_type.elem_type in NARROW_TYPES:
                    continue
            if name not in _PORTS and not (role == "output" and name == "UNDEFINED"):
                raise KilnError(
                    f"{path}: {role} '{value.name}' is of type {name.lower()}, allowed: {_names_text(_PORTS)}"
                    f"{_way_round(value, nodes, outputs)}"
                )


def _way_round(
    value: onnx.ValueInfoProto, nodes: Sequence[onnx.NodeProto], outputs: Sequence[onnx.ValueInfoProto]
) -> str:
    """The remedy for a sequence, an optional value, or an output of maps or texts; empty for others."""
    writers = [node for node in nodes if value.name in node.output]
    if writers and writers[0].op_type == "ZipMap":
        others = [port.name for port in outputs if _type_name(port.type.tensor_type.elem_type) in _PORTS]
        kept = ", ".join([*(f"{name}: {name}" for name in others), f"scores: {writers[0].input[0]}"])
        return (
            "; the maps are made by a ZipMap of a tensor: in skl2onnx write options={'zipmap': False}, or in "
            f"the YAML file cut: {{outputs: {{{kept}}}}}"
        )
    if _has_tensors(value.type):
        return f"; give its number of tensors, in the YAML file cut: {{elements: {{{value.name}: N}}}}"
    if writers and value.type.tensor_type.elem_type == onnx.TensorProto.STRING:
        return "; name the other outputs with the key 'cut', which leaves this one out"
    if value.type.tensor_type.elem_type == onnx.TensorProto.STRING:
        return (
            "; process texts outside of the model, and let it begin after the nodes that do so, in the "
            "YAML file cut: {inputs: [TENSOR]}"
        )
    return ""


def content_of(kind: onnx.TypeProto) -> onnx.TypeProto:
    """The type of a sequence's or optional value's contents, at any depth; `kind` itself for other kinds."""
    while kind.WhichOneof("value") in ("sequence_type", "optional_type"):
        kind = (kind.sequence_type if kind.HasField("sequence_type") else kind.optional_type).elem_type
    return kind


def _has_tensors(kind: onnx.TypeProto) -> bool:
    """Whether a type is a sequence of tensors, or an optional value of one or several."""
    inner = content_of(kind)
    return inner is not kind and inner.WhichOneof("value") == "tensor_type"


def check_inside(path: Path, model: onnx.ModelProto) -> None:
    """Raise KilnError for a node that reads or writes a tensor of unsupported type, such as 4-bit integers.

    `model` must be folded, with inferred types: constants of such types that folding has removed are allowed.
    """
    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    for value in (*model.graph.value_info, *model.graph.input, *model.graph.output):
        types.setdefault(value.name, value.type.tensor_type.elem_type)
    for node in model.graph.node:
        for attribute in node.attribute if node.op_type == "Constant" else ():
            if attribute.HasField("t"):
                types[node.output[0]] = attribute.t.data_type
    read = {name for node in model.graph.node for name in node.input} | {v.name for v in model.graph.output}
    for node in model.graph.node:
        for name in (*node.input, *(name for name in node.output if name in read)):
            kind = _type_name(types.get(name, 0))
            if kind != "UNDEFINED" and kind not in _INNER:
                raise KilnError(
                    f"{path}: {describe(node)}: tensor '{name}' is of type {kind.lower()}, allowed: "
                    f"{_names_text(_INNER)}"
                )


def _type_name(number: int) -> str:
    return str(_NAMES.get(number, f"number {number}"))


def _names_text(names: set[str]) -> str:
    return ", ".join(sorted(names)).lower()
