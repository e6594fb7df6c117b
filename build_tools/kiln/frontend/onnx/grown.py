"""Carried values of loops that grow by rows: PyTorch's `all = torch.cat((all, new))` in a loop.

The size of such a value differs between iterations, for which no memory can be planned. The loop returns the
new rows of each iteration instead; after the loop they are appended to the first value.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from kiln.frontend.onnx.attributes import graphs, integer_attribute, set_nodes
from kiln.frontend.onnx.order import reads
from kiln.onnx_domains import is_onnx


def without_growth(path: Path, model: onnx.ModelProto) -> None:
    """Rewrite the Loops of `model`, and of the graphs in it, in place. Raises KilnError as `graphs`.

    A value stays carried if anything but its own growth reads it, or if it grows along another axis.
    """
    for graph in reversed(list(graphs(path, model))):  # inner graphs first: outer nodes are copied
        nodes = []
        for node in graph.node:
            is_loop = node.op_type == "Loop" and is_onnx(node)
            nodes += [node, *(_without_carried_rows(node) if is_loop else ())]
        if len(nodes) > len(graph.node):
            set_nodes(graph, nodes)


def _without_carried_rows(loop: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """Make `loop` return rows in place of carried values that grow; yields the nodes that append the rows."""
    body = next(attribute.g for attribute in loop.attribute if attribute.name == "body")
    count = len(loop.input) - 2
    grown = {index: join for index in range(count) if (join := _growth(body, index)) is not None}
    if not grown:
        return
    inputs, outputs = list(loop.input), list(loop.output)
    rows = []
    for index, join in grown.items():
        final = outputs[index] if index < len(outputs) else ""
        rows.append((f"{final}/rows", inputs[2 + index], final, join))
        body.node.remove(join)
    carried = [index for index in range(count) if index not in grown]
    scanned = outputs[count:] + [name if final else "" for name, _, final, _ in rows]
    results = [body.output[1 + index] for index in carried] + list(body.output[1 + count :])
    results += [_untyped_value(join.input[1]) for *_, join in rows]
    values = list(body.input[:2]) + [body.input[2 + index] for index in carried]
    results.insert(0, body.output[0])
    _set_names(loop.input, [*inputs[:2], *(inputs[2 + index] for index in carried)])
    _set_names(loop.output, [*(outputs[index] for index in carried), *scanned])
    for field, new in ((body.input, values), (body.output, results)):
        copies = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in new]
        del field[:]
        field.extend(copies)
    for name, first, final, _ in rows:
        if final:
            yield from _append_rows(name, first, final)


def _growth(body: onnx.GraphProto, index: int) -> onnx.NodeProto | None:
    """The Concat by which carried value `index` grows along axis 0; None if it does not, or is read."""
    name, result = body.input[2 + index].name, body.output[1 + index].name
    join = next((node for node in body.node if result in node.output), None)
    if join is None or join.op_type != "Concat" or list(join.input[:1]) != [name] or len(join.input) != 2:
        return None
    axis = integer_attribute(join, "axis", 1)
    readers = [node for node in body.node if {name, result} & set(reads(node))]
    returned = [value.name for value in body.output].count(result)
    return join if axis == 0 and readers == [join] and returned == 1 and join.input[1] != name else None


def _append_rows(rows: str, first: str, final: str) -> Iterator[onnx.NodeProto]:
    """Nodes that compute `final`: `first`, then the rows of all iterations, (iterations, rows, …)."""

    def constant(name: str, value: int) -> onnx.NodeProto:
        tensor = numpy_helper.from_array(np.array([value], np.int64))
        return helper.make_node("Constant", [], [f"{rows}/{name}"], value=tensor)

    yield constant("zero", 0)
    yield constant("two", 2)
    yield constant("all", -1)
    yield constant("end", 2**31 - 1)
    yield helper.make_node("Shape", [rows], [f"{rows}/shape"])
    limits = [f"{rows}/{name}" for name in ("two", "end", "zero")]
    yield helper.make_node("Slice", [f"{rows}/shape", *limits], [f"{rows}/inner"])
    yield helper.make_node("Concat", [f"{rows}/all", f"{rows}/inner"], [f"{rows}/wanted"], axis=0)
    yield helper.make_node("Reshape", [rows, f"{rows}/wanted"], [f"{rows}/flat"])
    yield helper.make_node("Concat", [first, f"{rows}/flat"], [final], axis=0)


def _untyped_value(name: str) -> onnx.ValueInfoProto:
    value = onnx.ValueInfoProto()
    value.name = name
    return value


def _set_names(field: Any, names: list[str]) -> None:
    del field[:]
    field.extend(names)
