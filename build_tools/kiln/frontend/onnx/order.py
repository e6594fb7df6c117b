"""Topological order of an ONNX graph's nodes: ONNX's checker demands it, ONNX Runtime makes it for itself."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from pathlib import Path

import onnx

from kiln.frontend.onnx.attributes import graphs


def sort_nodes(path: Path, model: onnx.ModelProto) -> None:
    """Put every node of every graph after the nodes whose results it, or a graph inside it, reads.

    A graph in order stays as it is. In another one the nodes keep their order as far as possible (Kahn 1962,
    the first ready node first), and nodes that depend on themselves come last, where ONNX's checker names
    one of them. Raises KilnError for graphs nested too deep.
    """
    for graph in reversed(list(graphs(path, model))):  # inner ones first: outer nodes are copied with them
        order = _order([reads(node) for node in graph.node], [list(node.output) for node in graph.node])
        if order != sorted(order):
            nodes = [onnx.NodeProto.FromString(graph.node[at].SerializeToString()) for at in order]
            del graph.node[:]
            graph.node.extend(nodes)


def reads(node: onnx.NodeProto) -> set[str]:
    """The names that a node reads, those inside its graphs included."""
    names = set(node.input)
    waiting = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    while waiting:
        graph = waiting.pop()
        names.update(value.name for value in graph.output)
        for inner in graph.node:
            names.update(inner.input)
            waiting.extend(attribute.g for attribute in inner.attribute if attribute.HasField("g"))
    return names


def _order(reads: Sequence[set[str]], writes: Sequence[Sequence[str]]) -> list[int]:
    """The positions of the nodes in topological order."""
    writer = {name: at for at, names in enumerate(writes) for name in names if name}
    needs = [{writer[name] for name in names if name in writer} for names in reads]
    readers: list[list[int]] = [[] for _ in reads]
    for at, needed in enumerate(needs):
        for each in needed:
            readers[each].append(at)
    left = [len(needed) for needed in needs]
    ready = [at for at, count in enumerate(left) if count == 0]
    found: list[int] = []
    while ready:
        at = heapq.heappop(ready)
        found.append(at)
        for reader in readers[at]:
            left[reader] -= 1
            if left[reader] == 0:
                heapq.heappush(ready, reader)
    return found + [at for at, count in enumerate(left) if count > 0]
