"""Removes nodes whose results nothing reads, and the results of If, Loop and Scan that nothing reads.

The number of rows that a Loop returns may depend on the data: then their memory needs a bound, and a run with
more rows fails. Rows that nothing reads must cause neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx

from kiln.frontend.onnx.attributes import graphs_in, set_nodes
from kiln.frontend.onnx.order import reads
from kiln.onnx_domains import is_onnx, opset_of

_LISTS_OF_ROWS = ("scan_output_axes", "scan_output_directions")


def without_unread(model: onnx.ModelProto) -> None:
    """Remove nodes and results that no output of `model` depends on, in place. Its nodes must be sorted."""
    _remove(model.graph, opset_of(model))


def _remove(graph: onnx.GraphProto, opset: int) -> None:
    """Remove what the outputs of `graph` do not depend on, from it and from the graphs in its nodes."""
    read = {value.name for value in graph.output}
    kept: list[onnx.NodeProto] = []
    for node in reversed(graph.node):
        if not any(name in read for name in node.output if name):
            continue
        if is_onnx(node):
            _remove_results(node, read, opset)
        for body in graphs_in(node):
            _remove(body, opset)
        read |= reads(node)
        kept.append(node)
    if len(kept) < len(graph.node):
        set_nodes(graph, reversed(kept))


def _remove_results(node: onnx.NodeProto, read: set[str], opset: int) -> None:
    """Remove results of `node` that are not among the names `read`, if it is an If, Loop or Scan.

    Values that a Loop or a Scan carries stay, and the Scans of operator sets before 9, which always have a
    known number of rows.
    """
    attributes = {attribute.name: attribute for attribute in node.attribute}
    if node.op_type == "If":
        _keep_results(node, [attributes[name].g for name in ("then_branch", "else_branch")], 0, 0, read)
    elif node.op_type == "Loop":
        _keep_results(node, [attributes["body"].g], max(0, len(node.input) - 2), 1, read)
    elif node.op_type == "Scan" and opset >= 9:
        states = len(node.input) - attributes["num_scan_inputs"].i
        places = _keep_results(node, [attributes["body"].g], states, 0, read)
        for values in (attributes[name].ints for name in _LISTS_OF_ROWS if name in attributes):
            values[:] = [values[place] for place in places]


def _keep_results(
    node: onnx.NodeProto, bodies: Sequence[onnx.GraphProto], first: int, before: int, read: set[str]
) -> list[int]:
    """Remove results of `node` from number `first` on that nothing reads; returns the places of the others.

    `bodies`: graphs that compute them, as outputs after `before` others. Places count from `first`.
    """
    names = [*node.output, *[""] * (len(bodies[0].output) - before - len(node.output))]
    places = [place for place, name in enumerate(names[first:]) if name in read]
    node.output[:] = [*names[:first], *(names[first + place] for place in places)]
    for body in bodies:
        _keep(body.output, before + first, places)
    return places


def _keep(outputs: Any, first: int, places: Sequence[int]) -> None:
    """Remove from `outputs`, from number `first` on, all but those at `places`, counted from there."""
    kept = [onnx.ValueInfoProto.FromString(outputs[first + place].SerializeToString()) for place in places]
    del outputs[first:]
    outputs.extend(kept)
