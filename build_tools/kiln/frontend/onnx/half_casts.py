"""Casts that make the rounding of 16-bit floats visible, in a graph that is computed in float32.

A value that leaves the 16-bit type for float64, an integer or a truth value is rounded to 16 bits first, as
in the file: a float64 shows the rounding, and an integer can differ by one. A cast to a 16-bit type directly
before a cast to another type is there to round, so both stay. A cast of a computed value to float32 does not
round: models in mixed precision have many such casts, between operators that are fused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper

from kiln.frontend.onnx.attributes import graphs_in, set_nodes
from kiln.frontend.onnx.value_types import with_value_types
from kiln.onnx_domains import NARROW

HALVES = {TensorProto.FLOAT16: "fp16", TensorProto.BFLOAT16: "bf16"}
_CASTS = ("Cast", "CastLike")


@dataclass(frozen=True)
class RoundingCast:
    """The cast at `index` in the nodes of `graph`, whose input is to be rounded to the 16-bit type `kind`.

    before: the cast of another type to this one that computes the input, if one does.
    """

    graph: onnx.GraphProto
    index: int
    kind: int
    before: onnx.NodeProto | None


def rounding_casts(model: onnx.ModelProto) -> list[RoundingCast]:
    """The casts of a model with 16-bit floats that show the rounding; those of inner graphs are last."""
    graphs = list(_with_inner(model.graph))
    if not any(node.op_type in _CASTS for graph in graphs for node in graph.node):
        return []
    types = _element_types(model)
    writers = {name: node for graph in graphs for node in graph.node for name in node.output}
    casts = []
    for graph in graphs:
        for index, node in enumerate(graph.node):
            kind = types.get(node.input[0], 0) if node.op_type in _CASTS else 0
            if kind not in HALVES:
                continue
            before = writers.get(node.input[0])
            if before is not None and (before.op_type not in _CASTS or types.get(before.input[0]) == kind):
                before = None
            # From one 16-bit type to the other, a cast rounds like those from wider types.
            hides = {TensorProto.UNDEFINED, kind} | (
                {TensorProto.FLOAT, *HALVES} if before is None else set()
            )
            if types.get(node.output[0], 0) not in hides:
                casts.append(RoundingCast(graph, index, kind, before))
    return casts


def round_before(casts: list[RoundingCast]) -> None:
    """Insert the rounding before each cast, in place. The graphs must compute in float32 already."""
    by_graph: dict[int, list[RoundingCast]] = {}
    for cast in casts:
        by_graph.setdefault(id(cast.graph), []).append(cast)
    for group in reversed(by_graph.values()):  # inner graphs first: the nodes around them are copied
        by_index = {cast.index: cast for cast in group}
        nodes: list[onnx.NodeProto] = []
        for index, node in enumerate(group[0].graph.node):
            if index in by_index:
                nodes += _rounding(node, by_index[index])
            nodes.append(node)
        set_nodes(group[0].graph, nodes)


def _rounding(node: onnx.NodeProto, cast: RoundingCast) -> tuple[onnx.NodeProto, onnx.NodeProto]:
    """Two nodes that round the input of `node`, which reads their result after; a float64 is rounded once."""
    source, narrow, wide = node.input[0], f"{node.output[0]}.rounded", f"{node.output[0]}.rounded.float32"
    node.input[0] = wide
    if cast.kind == TensorProto.BFLOAT16:
        return (
            helper.make_node("Encode", [source], [narrow], narrow, domain=NARROW, to=cast.kind),
            helper.make_node("Decode", [narrow], [wide], wide, domain=NARROW, of=cast.kind),
        )
    source = cast.before.input[0] if cast.before is not None else source
    return (
        helper.make_node("Cast", [source], [narrow], narrow, to=cast.kind),
        helper.make_node("Cast", [narrow], [wide], wide, to=TensorProto.FLOAT),
    )


def _with_inner(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for inner in graphs_in(node):
            yield from _with_inner(inner)


def _element_types(model: onnx.ModelProto) -> dict[str, int]:
    """The element types of all tensors whose types can be inferred, by name; none in an invalid graph."""
    try:
        inferred = with_value_types(model)
    except Exception:  # the import reports the fault, with the node
        return {}
    types: dict[str, int] = {}
    for graph in _with_inner(inferred.graph):
        for tensor in graph.initializer:
            types[tensor.name] = tensor.data_type
        for value in (*graph.input, *graph.value_info, *graph.output):
            types[value.name] = value.type.tensor_type.elem_type
    return types
