"""Graphs with tensors of 8-bit floats, and of integers and floats of fewer bits, in terms of bytes.

No processor that Kiln serves computes with such elements. So every tensor of such a type is stored as int8 or
uint8, one element in a byte: integers as their values, floats as their codes. Inputs and outputs of the model
are such bytes too. Operators that only move elements read bytes as they are; casts, QuantizeLinear and
DequantizeLinear become operators that encode and decode (kiln.frontend.onnx.narrow_codes).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from kiln.errors import KilnError
from kiln.frontend.onnx.attributes import describe
from kiln.onnx_domains import NARROW, is_onnx

NARROW_TYPES = frozenset(
    kind
    for name, kind in TensorProto.DataType.items()
    if name.startswith(("FLOAT8", "FLOAT6", "FLOAT4")) or name in ("INT4", "UINT4", "INT2", "UINT2")
)
# Operators that move elements without reading their values.
_MOVES = frozenset(
    (
        "Concat",
        "DepthToSpace",
        "Expand",
        "Flatten",
        "Gather",
        "GatherElements",
        "GatherND",
        "Identity",
        "Reshape",
        "ReverseSequence",
        "Shape",
        "ScatterElements",
        "ScatterND",
        "Size",
        "Slice",
        "SpaceToDepth",
        "Split",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
        "Where",
    )
)
_CASTS = ("Cast", "CastLike")


def is_integer(kind: int) -> bool:
    """Whether a narrow type is a type of integers."""
    return kind in (TensorProto.INT4, TensorProto.UINT4, TensorProto.INT2, TensorProto.UINT2)


def stored_as(kind: int) -> str:
    """The type, int8 or uint8, that stores one element of a narrow type."""
    return "int8" if kind in (TensorProto.INT4, TensorProto.INT2) else "uint8"


def element_types(model: onnx.ModelProto) -> dict[str, str]:
    """The names of types that are stored as other types, by input or output."""
    ports = {
        value.name: value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)
    }
    stored = NARROW_TYPES | {TensorProto.BFLOAT16}
    return {name: TensorProto.DataType.Name(kind).lower() for name, kind in ports.items() if kind in stored}


def store_narrow(path: Path, model: onnx.ModelProto) -> None:
    """Store all tensors of narrow types as bytes, in place. `model` must have inferred types.

    Raises KilnError for an operator that computes with a narrow type.
    """
    graph = model.graph
    kinds = _kinds(graph)
    if not NARROW_TYPES & set(kinds.values()):
        return
    nodes = [converted for node in graph.node for converted in _nodes_on_bytes(path, node, kinds)]
    del graph.node[:]
    graph.node.extend(nodes)
    for weight in graph.initializer:
        _store_constant(weight)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                _store_constant(attribute.t)
    for value in (*graph.input, *graph.output, *graph.value_info):
        kind = value.type.tensor_type.elem_type
        if kind in NARROW_TYPES:
            value.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(stored_as(kind)))
    if NARROW not in {entry.domain for entry in model.opset_import}:
        model.opset_import.append(helper.make_opsetid(NARROW, 1))


def _kinds(graph: onnx.GraphProto) -> dict[str, int]:
    """The element types of the tensors of a graph."""
    kinds = {
        value.name: value.type.tensor_type.elem_type
        for value in (*graph.value_info, *graph.input, *graph.output)
    }
    kinds.update((weight.name, weight.data_type) for weight in graph.initializer)
    for node in graph.node:
        for attribute in node.attribute if node.op_type == "Constant" else ():
            if attribute.HasField("t"):
                kinds[node.output[0]] = attribute.t.data_type
        source = _source_of_type(node)
        for name in node.output if kinds.get(source) in NARROW_TYPES else ():
            # ONNX infers no types after a node of another domain, such as com.microsoft's QuantizeLinear.
            kinds[name] = kinds.get(name) or kinds[source]
    return kinds


def _source_of_type(node: onnx.NodeProto) -> str:
    """The name of the input whose element type the outputs of a node share; empty where there is none."""
    if node.op_type == "QuantizeLinear":
        index = 2
    elif node.op_type in _MOVES - {"Shape", "Size"}:
        index = 1 if node.op_type == "Where" else 0
    else:
        return ""
    return str(node.input[index]) if len(node.input) > index else ""


def _nodes_on_bytes(path: Path, node: onnx.NodeProto, kinds: Mapping[str, int]) -> Iterator[onnx.NodeProto]:
    """The nodes that compute `node` on bytes."""
    input_kinds = [kind if (kind := kinds.get(name, 0)) in NARROW_TYPES else 0 for name in node.input]
    output_kinds = [kind if (kind := kinds.get(name, 0)) in NARROW_TYPES else 0 for name in node.output]
    if not any((*input_kinds, *output_kinds)) or node.op_type == "Constant":
        yield node
    elif node.op_type in _CASTS:
        yield from _nodes_of_cast(node, input_kinds[0], output_kinds[0])
    elif node.op_type in ("QuantizeLinear", "DequantizeLinear"):
        kind = output_kinds[0] if node.op_type == "QuantizeLinear" else input_kinds[0]
        if node.op_type == "DequantizeLinear" and is_integer(kind):  # as of int8 and uint8
            yield node
            return
        changed = onnx.NodeProto()
        changed.CopyFrom(node)
        changed.domain = NARROW
        changed.attribute.append(helper.make_attribute("narrow", kind))
        yield changed
    elif node.op_type in _MOVES and is_onnx(node):
        yield node
    else:
        pairs = zip((*node.input, *node.output), (*input_kinds, *output_kinds), strict=True)
        name, kind = next((name, kind) for name, kind in pairs if kind)
        type_name = TensorProto.DataType.Name(kind).lower()
        raise KilnError(
            f"{path}: {describe(node)}: tensor '{name}' is of type {type_name}, "
            "allowed with it: Cast, QuantizeLinear, DequantizeLinear and operators that only move elements; "
            "insert a Cast to float before the node"
        )


def _nodes_of_cast(node: onnx.NodeProto, source_kind: int, target_kind: int) -> Iterator[onnx.NodeProto]:
    """The nodes of a cast from `source_kind` to `target_kind`; a type that is not narrow is 0."""
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    source, target = node.input[0], node.output[0]
    if source_kind and not is_integer(source_kind):
        done = not target_kind and node.op_type == "Cast" and attributes["to"] == TensorProto.FLOAT
        read = target if done else f"{target}.decoded"
        yield helper.make_node("Decode", [source], [read], node.name, domain=NARROW, of=source_kind)
        source = read
    if not target_kind:
        if source != target:
            yield helper.make_node(
                node.op_type,
                [source, *node.input[1:]],
                [target],
                node.name,
                **{key: value for key, value in attributes.items() if key == "to"},
            )
    elif is_integer(target_kind):
        yield helper.make_node("Wrap", [source], [target], node.name, domain=NARROW, to=target_kind)
    else:
        extra = {key: attributes[key] for key in ("saturate", "round_mode") if key in attributes}
        yield helper.make_node(
            "Encode", [source], [target], node.name, domain=NARROW, to=target_kind, **extra
        )


def _store_constant(tensor: onnx.TensorProto) -> None:
    """Store a constant of a narrow type as bytes, in place."""
    if tensor.data_type not in NARROW_TYPES:
        return
    value, kind = numpy_helper.to_array(tensor), tensor.data_type
    stored = value.astype(stored_as(kind)) if is_integer(kind) else value.view("uint8")
    tensor.CopyFrom(numpy_helper.from_array(stored, tensor.name))
