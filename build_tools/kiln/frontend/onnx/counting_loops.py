"""Trip counts of loops that count: tf2onnx writes Keras' recurrent layers as `while time < steps`.

Such a Loop has no trip count, and a condition that compares a counter, which grows by a constant in each
iteration, with a value that stays the same. The number of its iterations is the number of rows of its
results, so it must be known from the shapes. The loop gets the trip count and is left without a condition.

A Loop without a first condition ends by that of its body, as in ONNX Runtime; onnxsim would ignore it, as
ONNX says. It gets the first condition `true`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from kiln.arrays import Array
from kiln.frontend.onnx.attributes import graphs, set_nodes
from kiln.onnx_domains import is_onnx

# Operators that leave an integer as it is, and those through which a size comes from a Shape.
_SAME = ("Identity", "Cast")
_OF_SHAPES = (*_SAME, "Gather", "Slice", "Squeeze", "Unsqueeze", "Reshape")
# Operators whose first input is less than the second, or equal, or the other way round.
_COMPARISONS = {
    "Less": (False, False),
    "LessOrEqual": (False, True),
    "Greater": (True, False),
    "GreaterOrEqual": (True, True),
}


def with_trip_counts(path: Path, model: onnx.ModelProto) -> None:
    """Rewrite the Loops of `model`, and of the graphs in it, in place. Raises KilnError as `graphs`.

    Loops that count get a trip count; others get a first condition where they lack one.
    """
    nested = list(graphs(path, model))
    constants = dict(_constants(nested))
    for graph in reversed(nested):  # inner graphs first: outer nodes are copied
        producers = _producers(graph.node)
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            if node.op_type == "Loop" and is_onnx(node):
                nodes += _counted(node, producers, constants)
                nodes += _first_condition(node)
            nodes.append(node)
        if len(nodes) > len(graph.node):
            set_nodes(graph, nodes)


@dataclass(frozen=True)
class _Counter:
    """A condition `value < limit`, or with `equal` `value <= limit`: names in the graph around the loop.

    `start`: the value before the first iteration. `step`: what an iteration adds to it.
    """

    start: str
    limit: str
    step: int
    equal: bool


def _counted(
    loop: onnx.NodeProto, producers: Mapping[str, onnx.NodeProto], constants: Mapping[str, Array]
) -> Iterable[onnx.NodeProto]:
    """Give `loop` a trip count if it counts and has none; returns the nodes that compute the count."""
    body = next(attribute.g for attribute in loop.attribute if attribute.name == "body")
    trip_count = constants.get(loop.input[0]) if loop.input[0] else None
    if loop.input[0] and (trip_count is None or int(trip_count.reshape(-1)[0]) < 1 << 40):
        return []
    counter = _counter(loop, body, constants)
    if counter is None or not _is_size(counter.limit, producers, constants):
        return []
    start = constants.get(_same(counter.start, producers))
    if start is None or int(start.reshape(-1)[0]) != 0:
        return []
    going = loop.input[1] if len(loop.input) > 1 else ""
    first = constants.get(going)
    starts_always = not going or (first is not None and bool(first.reshape(-1)[0]))
    is_known = _same(counter.limit, producers) in constants  # a size of a Shape may be 0
    if not (starts_always and is_known) and not _compares(going, counter, producers, constants):
        return []
    count, condition = f"{loop.output[0]}/iterations", f"{body.output[0].name}/always"
    loop.input[0], loop.input[1] = count, ""
    body.node.append(helper.make_node("Identity", [body.input[1].name], [condition]))
    body.output[0].name = condition
    return _number(count, counter, producers)


def _first_condition(loop: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """Give `loop` the first condition `true` if it has none and its body may end it; returns its node."""
    body = next(attribute.g for attribute in loop.attribute if attribute.name == "body")
    omitted = len(loop.input) < 2 or not loop.input[1]
    if not omitted or _same(body.output[0].name, _producers(body.node)) == body.input[1].name:
        return
    name = f"{next(filter(None, loop.output), loop.name)}/going"
    loop.input.extend([""] * (2 - len(loop.input)))
    loop.input[1] = name
    yield helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.array(True), name))


def _number(
    count: str, counter: _Counter, producers: Mapping[str, onnx.NodeProto]
) -> Iterator[onnx.NodeProto]:
    """Nodes that compute the iterations, `count`, of a counter that starts at 0."""

    def constant(name: str, value: int) -> onnx.NodeProto:
        tensor = numpy_helper.from_array(np.array(value, np.int64))
        return helper.make_node("Constant", [], [f"{count}/{name}"], value=tensor)

    yield constant("step", counter.step)
    yield constant("up", counter.step - 1 + int(counter.equal))
    limit = _same(counter.limit, producers)
    yield helper.make_node("Cast", [limit], [f"{count}/limit"], to=onnx.TensorProto.INT64)
    yield helper.make_node("Add", [f"{count}/limit", f"{count}/up"], [f"{count}/sum"])
    yield helper.make_node("Div", [f"{count}/sum", f"{count}/step"], [count])


def _counter(loop: onnx.NodeProto, body: onnx.GraphProto, constants: Mapping[str, Array]) -> _Counter | None:
    """The counter whose next value the condition of `loop` compares; None for another condition."""
    producers = _producers(body.node)
    comparison = producers.get(_same(body.output[0].name, producers))
    if comparison is None or comparison.op_type not in _COMPARISONS:
        return None
    swapped, equal = _COMPARISONS[comparison.op_type]
    value, limit = (_same(name, producers) for name in comparison.input[:: -1 if swapped else 1])
    carried = [value.name for value in body.input[2:]]
    after = [_same(value.name, producers) for value in body.output[1 : 1 + len(carried)]]
    add = producers.get(value)
    if add is None or add.op_type != "Add" or value not in after:
        return None
    position = after.index(value)
    addends = [_same(name, producers) for name in add.input]
    if carried[position] not in addends:
        return None
    addends.remove(carried[position])
    step = constants.get(addends[0])
    if step is None or int(step.reshape(-1)[0]) != step.reshape(-1)[0] or step.reshape(-1)[0] < 1:
        return None
    if limit in carried:
        if after[carried.index(limit)] != limit:
            return None
        limit = loop.input[2 + carried.index(limit)]
    elif limit in producers or limit in {value.name for value in body.input}:
        return None
    return _Counter(loop.input[2 + position], limit, int(step.reshape(-1)[0]), equal)


def _compares(
    going: str, counter: _Counter, producers: Mapping[str, onnx.NodeProto], constants: Mapping[str, Array]
) -> bool:
    """Whether `going`, the condition of the first iteration, compares the counter's first value, 0."""
    comparison = producers.get(_same(going, producers))
    if comparison is None or comparison.op_type not in _COMPARISONS:
        return False
    swapped, equal = _COMPARISONS[comparison.op_type]
    value, limit = (_same(name, producers) for name in comparison.input[:: -1 if swapped else 1])
    start = constants.get(value)
    is_start = value == _same(counter.start, producers) or (
        start is not None and start.size == 1 and float(start.reshape(-1)[0]) == 0.0
    )
    return is_start and equal == counter.equal and limit == _same(counter.limit, producers)


def _is_size(name: str, producers: Mapping[str, onnx.NodeProto], constants: Mapping[str, Array]) -> bool:
    """Whether a tensor is known from the shapes and not negative: a constant, or a size of a Shape."""
    known = constants.get(_same(name, producers))
    if known is not None:
        return known.size == 1 and int(known.reshape(-1)[0]) > 0
    while name in producers and producers[name].op_type in _OF_SHAPES:
        name = producers[name].input[0]
    return name in producers and producers[name].op_type == "Shape"


def _same(name: str, producers: Mapping[str, onnx.NodeProto]) -> str:
    """The tensor that `name` is a copy of, perhaps in another type."""
    while name in producers and producers[name].op_type in _SAME:
        name = producers[name].input[0]
    return name


def _producers(nodes: Iterable[onnx.NodeProto]) -> dict[str, onnx.NodeProto]:
    return {name: node for node in nodes for name in node.output if name}


def _constants(nested: Iterable[onnx.GraphProto]) -> Iterator[tuple[str, Array]]:
    """Constants of one element, by name, of all graphs."""
    for graph in nested:
        for weight in graph.initializer:
            if int(np.prod(weight.dims)) == 1:
                yield weight.name, numpy_helper.to_array(weight)
        for node in graph.node:
            if node.op_type == "Constant" and [item.name for item in node.attribute] == ["value"]:
                array = numpy_helper.to_array(node.attribute[0].t)
                if array.size == 1:
                    yield node.output[0], array
