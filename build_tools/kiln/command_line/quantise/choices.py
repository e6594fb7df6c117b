"""Nodes that a search may keep in float, and nodes that follow their neighbours.

A choice is an operator that rounds one of its own operands: a product, with weights or of two activations, a
sum, a mean, a table. Followers move or clip elements: they are in float where no neighbour is quantised,
since else they would round between two operators in float.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from kiln.command_line.quantise.graphs import OnnxGraph
from kiln.command_line.quantise.recurrent import is_recurrent
from kiln.command_line.quantise.tensors import reads_unbounded

_FOLLOWER_NAMES = """
    Clip Concat DepthToSpace Dropout Expand Flatten Gather GatherElements GatherND Identity MaxPool Pad Relu
    Reshape Slice SpaceToDepth Split Squeeze Tile Transpose Unsqueeze
"""
FOLLOWERS = frozenset(_FOLLOWER_NAMES.split())


def is_choice(graph: OnnxGraph, node: Any, ops: Collection[str], floats: Collection[str]) -> bool:
    """Whether `node`, of one of the quantised operators `ops`, is chosen by itself.

    floats: the computed tensors of floats. A Gather from a constant table, whose rows are rounded, is one,
    and so is a recurrent layer, whose weights are rounded. Nodes that read infinite constants stay in float.
    """
    if is_recurrent(graph, node):
        return True
    if node.op_type not in ops or not any(name in floats for name in (*node.input, *node.output)):
        return False
    if reads_unbounded(graph, node):
        return False
    table = node.op_type == "Gather" and graph.constant(node.input[0]) is not None
    return table or node.op_type not in FOLLOWERS


def followers_in_float(graph: OnnxGraph, quantised: Collection[str]) -> list[str]:
    """Names of the followers that no choice in `quantised` reaches over other followers."""
    reached = set(quantised)
    queue = [node for node in graph.nodes if node.name in reached]
    while queue:
        for neighbour in _neighbours(graph, queue.pop()):
            if neighbour.op_type in FOLLOWERS and neighbour.name not in reached:
                reached.add(neighbour.name)
                queue.append(neighbour)
    return [node.name for node in graph.nodes if node.op_type in FOLLOWERS and node.name not in reached]


def _neighbours(graph: OnnxGraph, node: Any) -> Iterator[Any]:
    yield from (graph.producer[name] for name in node.input if name in graph.producer)
    yield from (reader for name in node.output for reader, _ in graph.readers.get(name, ()))
