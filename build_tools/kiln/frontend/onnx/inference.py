"""ONNX's inference of types and shapes, without the operator that ends the process.

EyeLike with `dtype` of ONNX 1.23 asks for the shape of its input before it asks whether the input has a type,
and ends the process with SIGSEGV after an operator that ONNX does not know, such as a user's own.
tests/unit/frontend/test_inference.py tells when this is mended.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import helper

from kiln.frontend.onnx.attributes import graphs_in, set_nodes
from kiln.frontend.onnx.large_weights import take_types, without_large_weights
from kiln.onnx_domains import is_onnx

# Suffixes of the names of added tensors, after the name of the node's output.
_SIZES, _ZEROS = "/sizes of the input", "/zeros"


def infer_shapes(model: onnx.ModelProto, data_prop: bool = False) -> onnx.ModelProto:
    """A copy of `model` with the types and shapes that ONNX infers; `data_prop`: from values of sizes, too.

    EyeLike of a tensor that has no type becomes EyeLike of zeros of `dtype` in the sizes of the tensor, which
    is the same. Raises the exceptions of onnx.shape_inference for a graph that is not valid.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    declare_shapes(result, data_prop)
    return result


def declare_shapes(model: onnx.ModelProto, data_prop: bool = False) -> None:
    """Declare in `model` itself what `infer_shapes` infers. Raises as it does, and changes nothing then."""
    take_types(model, infer_types(model, data_prop))


def infer_types(model: onnx.ModelProto, data_prop: bool = False) -> onnx.ModelProto:
    """The result of `infer_shapes` without the elements of large weights."""
    model = without_large_weights(model)
    if not any(_dtype(node) for nodes in _node_lists(model) for node in nodes):
        return onnx.shape_inference.infer_shapes(model, data_prop=data_prop)
    without_dtypes = onnx.ModelProto()
    without_dtypes.CopyFrom(model)
    for nodes in _node_lists(without_dtypes):
        for node in nodes:
            if (dtype := _dtype(node)) is not None:
                node.attribute.remove(dtype)
    typed = _typed(onnx.shape_inference.infer_shapes(without_dtypes).graph)
    _repair(model.graph, typed)
    for function in model.functions:
        _repair(function, frozenset())
    return onnx.shape_inference.infer_shapes(model, data_prop=data_prop)


def _dtype(node: onnx.NodeProto) -> onnx.AttributeProto | None:
    """The attribute `dtype` of an EyeLike; None for other nodes and without it."""
    if node.op_type != "EyeLike" or not is_onnx(node):
        return None
    return next((attribute for attribute in node.attribute if attribute.name == "dtype"), None)


def _node_lists(model: onnx.ModelProto) -> Iterator[list[onnx.NodeProto]]:
    """The nodes of the graph, of each function and of all graphs inside."""
    waiting = [model.graph, *model.functions]
    while waiting:
        part = waiting.pop()
        yield list(part.node)
        waiting += [graph for node in part.node for graph in graphs_in(node)]


def _typed(graph: onnx.GraphProto) -> frozenset[str]:
    """The names of the tensors that have a type in `graph` and in the graphs inside."""
    values = [*graph.input, *graph.value_info, *graph.output]
    names = {value.name for value in values if value.type.WhichOneof("value") is not None}
    names |= {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        for inner in graphs_in(node):
            names |= _typed(inner)
    return frozenset(names)


def _repair(part: onnx.GraphProto | onnx.FunctionProto, typed: frozenset[str]) -> None:
    """Compute each EyeLike whose input is not among `typed` from zeros, also in the graphs inside."""
    nodes: list[onnx.NodeProto] = []
    for node in part.node:
        for inner in graphs_in(node):
            _repair(inner, typed)
        dtype = _dtype(node)
        if dtype is not None and node.input[0] not in typed:
            sizes, zeros = (node.output[0] + end for end in (_SIZES, _ZEROS))
            nodes += [helper.make_node("Shape", [node.input[0]], [sizes]), _zeros(sizes, zeros, dtype)]
            node.input[0] = zeros
            node.attribute.remove(dtype)
        nodes.append(node)
    set_nodes(part, nodes)


def _zeros(sizes: str, zeros: str, dtype: onnx.AttributeProto) -> onnx.NodeProto:
    """The node that computes zeros of the type that the attribute `dtype` of an EyeLike names."""
    zero = helper.make_tensor("zero", dtype.i, [1], [0])
    return helper.make_node("ConstantOfShape", [sizes], [zeros], value=zero)
