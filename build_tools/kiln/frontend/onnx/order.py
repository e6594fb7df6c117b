"""What the nodes of an ONNX graph read, and their topological sort.

ONNX's checker requires sorted nodes, ONNX Runtime does not.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from pathlib import Path

import onnx

from kiln.frontend.onnx.attributes import graphs, set_nodes


def sort_nodes(path: Path, model: onnx.ModelProto) -> None:
    """Sort the nodes of `model` and of all nested graphs topologically, in place.

    A node comes after the nodes whose results it, or a graph nested in it, reads. A sorted graph stays
    unchanged. Otherwise the original order is kept as far as possible (Kahn 1962, the first ready node
    first). Nodes of a cycle come last, and ONNX's checker names one of them. Raises KilnError for graphs
    that are nested too deep.
    """
    for graph in reversed(list(graphs(path, model))):  # inner graphs first, as outer nodes are copied whole
        order = _order([reads(node) for node in graph.node], [list(node.output) for node in graph.node])
        if order != sorted(order):
            set_nodes(graph, [graph.node[index] for index in order])


def reads(node: onnx.NodeProto) -> set[str]:
    """The names of the tensors that a node reads, including the reads of graphs nested in it."""
    names = set(node.input)
    waiting = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    while waiting:
        graph = waiting.pop()
        names.update(value.name for value in graph.output)
        for inner in graph.node:
            names.update(inner.input)
            waiting.extend(attribute.g for attribute in inner.attribute if attribute.HasField("g"))
    return names


def needed_by(graph: onnx.GraphProto, stops: set[str], outputs: set[str]) -> set[str]:
    """The names of all tensors that `outputs` depend on, without those that only `stops` depend on."""
    producers = {name: node for node in graph.node for name in node.output if name}
    needed: set[str] = set()
    waiting = list(outputs)
    while waiting:
        name = waiting.pop()
        if name in needed or not name:
            continue
        needed.add(name)
        if name in producers and name not in stops:
            waiting.extend(reads(producers[name]))
    return needed


def _order(reads: Sequence[set[str]], writes: Sequence[Sequence[str]]) -> list[int]:
    """The indices of the nodes in topological order; nodes of cycles are last.

    `reads`, `writes`: by node, the names of tensors.
    """
    writer = {name: index for index, names in enumerate(writes) for name in names if name}
    needs = [{writer[name] for name in names if name in writer} for names in reads]
    readers: list[list[int]] = [[] for _ in reads]
    for index, needed in enumerate(needs):
        for producer in needed:
            readers[producer].append(index)
    missing = [len(needed) for needed in needs]
    ready = [index for index, count in enumerate(missing) if count == 0]
    ordered: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        ordered.append(index)
        for reader in readers[index]:
            missing[reader] -= 1
            if missing[reader] == 0:
                heapq.heappush(ready, reader)
    return ordered + [index for index, count in enumerate(missing) if count > 0]
