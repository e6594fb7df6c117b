"""The bodies of operators that ONNX defines as functions of other operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import onnx.inliner
from onnx import helper

from kiln.onnx_domains import domain_of, versions_of

_MOST_NODES = 4096  # of one body


def has_body(node: onnx.NodeProto, opset: int) -> bool:
    """Whether ONNX defines the operator of `node` in version `opset` of its domain as a function."""
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, domain_of(node))
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def body_of(
    node: onnx.NodeProto,
    types: Mapping[str, tuple[int, Sequence[int | None]]],
    opsets: Sequence[onnx.OperatorSetIdProto],
) -> list[onnx.NodeProto]:
    """The nodes that compute `node`, in order; their inner tensors have names of their own.

    `types`: by input, the element type and the shape (None: a dynamic size). Returns no nodes for an operator
    whose body does not exist for these types or opsets, or has more than 4096 nodes.
    """
    schema = onnx.defs.get_schema(node.op_type, _version(node, opsets), domain_of(node))
    call = onnx.NodeProto()
    call.CopyFrom(node)
    attribute_names = {attribute_proto.name for attribute_proto in node.attribute}
    for name, attribute in schema.attributes.items():
        if name not in attribute_names and attribute.default_value.type:
            call.attribute.append(attribute.default_value)
    key = (node.domain, node.op_type)
    functions = []
    if schema.has_context_dependent_function:
        functions = [_body_for_types(schema, call, types, _version(node, opsets))]
        call.domain = functions[0].domain
    inputs = [
        helper.make_tensor_value_info(name, kind, [size if isinstance(size, int) else None for size in shape])
        for name, (kind, shape) in types.items()
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    graph = helper.make_graph([call], "node", inputs, outputs)
    imports = [*opsets, *(helper.make_opsetid(function.domain, 1) for function in functions)]
    model = helper.make_model(graph, opset_imports=imports, functions=functions)
    if functions:
        inlined = onnx.inliner.inline_local_functions(model, convert_version=True)
    else:
        inlined = onnx.inliner.inline_selected_functions(model, [key], False, inline_schema_functions=True)
    nodes = list(inlined.graph.node)
    if len(nodes) > _MOST_NODES or any((inner.domain, inner.op_type) == key for inner in nodes):
        return []
    _rename(nodes, {*types, *node.output}, f"{next(filter(None, node.output))}/")
    for number, inner in enumerate(nodes):
        inner.name = f"{node.name}/{inner.op_type}_{number}"
    return nodes


def _version(node: onnx.NodeProto, opsets: Sequence[onnx.OperatorSetIdProto]) -> int:
    """The version of the domain of `node`'s operator."""
    return versions_of(opsets).get(domain_of(node), 1)


def _body_for_types(
    schema: Any, node: onnx.NodeProto, types: Mapping[str, tuple[int, Sequence[int | None]]], opset: int
) -> onnx.FunctionProto:
    """The body of `node`, which depends on its types, as a function of a domain of its own.

    onnx.inliner cannot make it for a node with an omitted input, whose type it does not know.
    """
    kinds = []
    for name in node.input:
        kind = onnx.TypeProto()
        if name:
            element, shape = types[name]
            kind = helper.make_tensor_type_proto(
                element, [size if isinstance(size, int) else None for size in shape]
            )
        kinds.append(kind.SerializeToString())
    version = max(v for v in schema.context_dependent_function_opset_versions if v <= opset)
    serialized = schema.get_context_dependent_function_with_opset_version(
        version, node.SerializeToString(), kinds
    )
    function = onnx.FunctionProto.FromString(serialized)
    function.domain = "kiln.body"
    return function


def _rename(nodes: Sequence[onnx.NodeProto], unchanged: set[str], prefix: str) -> None:
    """Put `prefix` before the names of all tensors but `unchanged`, in graphs inside the nodes too."""
    for node in nodes:
        for names in (node.input, node.output):
            names[:] = [name if not name or name in unchanged else prefix + name for name in names]
        for attribute in node.attribute:
            if not attribute.HasField("g"):
                continue
            graph = attribute.g
            for value in (*graph.input, *graph.output, *graph.initializer):
                value.name = value.name if value.name in unchanged else prefix + value.name
            _rename(graph.node, unchanged, prefix)
