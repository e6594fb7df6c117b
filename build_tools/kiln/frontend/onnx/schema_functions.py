"""The bodies of operators that ONNX defines as functions of other operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
import onnx.inliner
from onnx import helper

_MOST_NODES = 4096  # of one body


def domain_of(node: onnx.NodeProto) -> str:
    """The domain of a node's operator, "" for ONNX's own."""
    return "" if node.domain == "ai.onnx" else str(node.domain)


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
    whose body does not exist for these types or opsets, and for one of more than 4096 nodes.
    """
    inputs = [
        helper.make_tensor_value_info(name, kind, [size if isinstance(size, int) else None for size in shape])
        for name, (kind, shape) in types.items()
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    model = helper.make_model(helper.make_graph([node], "node", inputs, outputs), opset_imports=opsets)
    key = (node.domain, node.op_type)
    inlined = onnx.inliner.inline_selected_functions(
        model, [key], exclude=False, inline_schema_functions=True
    )
    nodes = list(inlined.graph.node)
    if len(nodes) > _MOST_NODES or any((each.domain, each.op_type) == key for each in nodes):
        return []
    _rename(nodes, {*types, *node.output}, f"{next(filter(None, node.output))}/")
    for number, each in enumerate(nodes):
        each.name = f"{node.name}/{each.op_type}_{number}"
    return nodes


def _rename(nodes: Sequence[onnx.NodeProto], kept: set[str], prefix: str) -> None:
    """Put `prefix` before the names of all tensors but `kept`, in graphs inside the nodes too."""
    for node in nodes:
        for names in (node.input, node.output):
            names[:] = [name if not name or name in kept else prefix + name for name in names]
        for attribute in node.attribute:
            if not attribute.HasField("g"):
                continue
            graph = attribute.g
            for value in (*graph.input, *graph.output, *graph.initializer):
                value.name = value.name if value.name in kept else prefix + value.name
            _rename(graph.node, kept, prefix)
