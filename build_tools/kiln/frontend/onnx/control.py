"""If, Loop, Scan and SequenceMap: a branch that is known is taken, few iterations are unrolled.

Other loops become loops of the plan (plan_loops.py).

Where the condition of an If is known only when the model runs, the branch that it chooses runs
(if_results.py). A Loop of few iterations that may end early computes them all, and the condition selects the
values of the last iteration that counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from tvm import ir, relax
from tvm_ffi import structural_equal

from kiln.extents import shape_of
from kiln.frontend.onnx import order, plan_loops, sequences
from kiln.frontend.onnx.if_results import IfResults
from kiln.frontend.onnx.scans import scan
from kiln.frontend.onnx.value import Value, from_array

KINDS = ("If", "Loop", "Scan", "SequenceMap")
MOST_NODES = 1 << 14  # of all iterations of one node


def run(host: Any, node: onnx.NodeProto) -> None:
    """Convert `node`, one of KINDS, in the importer `host`.

    Raises ValueError, with a remedy, for a value that must be known before the model runs and is not.
    """
    Control(host, node).convert()


class Control:
    """Converts one node that chooses or repeats graphs, in the importer `host`."""

    def __init__(self, host: Any, node: onnx.NodeProto) -> None:
        self.host, self.node = host, node
        self.attributes = {
            attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute
        }
        self.where = node.output[0] or node.name

    def convert(self) -> None:
        """Bind the node's outputs."""
        if self.node.op_type == "If":
            self._convert_if()
        elif self.node.op_type == "Loop":
            self._convert_loop()
        elif self.node.op_type == "Scan":
            scan(self, _nodes_in(self.attributes["body"]), plan_loops.MOST_ITERATIONS)
        else:
            self._convert_map()

    # Values

    def constant(self, name: str) -> np.ndarray[Any, Any] | None:
        """The array of a tensor that is known before the model runs, else None."""
        value: Value | None = self.host._values.get(name)
        if value is not None:
            return value.numpy() if value.is_constant else None
        expression = self.host._nodes.get(name)
        if isinstance(expression, ir.GenericConst):
            array: np.ndarray[Any, Any] = expression.value.numpy()
            return array
        return None

    def alias(self, name: str, source: str) -> None:
        """Make `name` the tensor or the sequence `source`."""
        sequences.alias(self.host, name, source)

    def bind(self, name: str, expression: Any) -> str:
        self.host._nodes[name] = self.host.bb.normalize(expression)
        self.host._values.pop(name, None)
        return name

    def set(self, name: str, array: np.ndarray[Any, Any]) -> str:
        """Make `name` a constant."""
        self.host._values[name] = from_array(array, of_shape=True)
        self.host._nodes[name] = relax.const(array, str(array.dtype))
        return name

    def inline(self, graph: onnx.GraphProto, prefix: str, inputs: Mapping[str, str]) -> list[str]:
        """Convert the nodes of `graph` under names that begin with `prefix`; returns its outputs' names.

        `inputs`: by name in the graph, the tensor.
        """
        renamed = onnx.GraphProto()
        renamed.CopyFrom(graph)
        inner_names = {name for node in graph.node for name in node.output if name}
        inner_names |= {weight.name for weight in graph.initializer}
        names = {**{name: prefix + name for name in inner_names}, **inputs}
        _rename(renamed, names)
        self.host._graph(renamed)
        return [value.name for value in renamed.output]

    def _type(self, name: str) -> Any:
        return self.host._tensor(name).ty

    def _select(self, condition: str, yes: str, no: str, result: str) -> Any:
        """The tensor `yes` where `condition` is true, else `no`. Raises ValueError if types differ."""
        if yes == no:
            return self.host._tensor(yes)
        types = [self._type(name) for name in (yes, no)]
        same_type = str(types[0].dtype) == str(types[1].dtype)
        if not same_type or not structural_equal(types[0].shape, types[1].shape):
            text = self.host._symbols.shown
            sizes = [", ".join(map(text, shape_of(self.host._tensor(name)))) for name in (yes, no)]
            both_types = " and ".join(f"{ty.dtype}[{size}]" for ty, size in zip(types, sizes, strict=True))
            raise ValueError(
                f"{result} is {both_types}, depending on a value of the run: allowed is one "
                "type and one shape; pad the smaller one in the model"
            )
        flag = relax.op.reshape(self.host._tensor(condition), [1] * max(len(types[0].shape), 1))
        if not len(types[0].shape):
            flag = relax.op.reshape(self.host._tensor(condition), relax.ShapeExpr([]))
        sides = [self.host._tensor(name) for name in (yes, no)]
        return relax.op.where(self.host.bb.normalize(flag), *sides)

    def _scalar(self, name: str, role: str) -> None:
        """Raise ValueError unless the tensor `name` has one element."""
        sizes = shape_of(self.host._tensor(name))
        if any(size != 1 for size in sizes):
            raise ValueError(f"{role} has the shape {sizes}, allowed: one element")

    # If

    def _convert_if(self) -> None:
        graphs = [self.attributes[name] for name in ("then_branch", "else_branch")]
        condition = self.constant(self.node.input[0])
        if condition is not None:
            branch = graphs[0] if bool(condition.reshape(-1)[0]) else graphs[1]
            tensors = self.inline(branch, f"{self.where}/taken/", {})
            for name, result in zip(self.node.output, tensors, strict=True):
                self.alias(name, result)
            return
        self._scalar(self.node.input[0], "its condition")
        outputs = [
            self.inline(graph, f"{self.where}/{side}/", {})
            for graph, side in zip(graphs, ("then", "else"), strict=True)
        ]
        results: list[tuple[str, str, str]] = []
        for name, yes, no in zip(self.node.output, *outputs, strict=True):
            if name and (yes in self.host.sequences or no in self.host.sequences):
                pairs = sequences.pairs(self.host, yes, no, f"output '{name}'")
                element_names = [f"{name}/{index}" for index in range(len(pairs))]
                self.host.sequences[name] = element_names
                results += [(element, *pair) for element, pair in zip(element_names, pairs, strict=True)]
            elif name:
                results.append((name, yes, no))
        tensors = IfResults(self.host, self.node.input[0]).chosen(results)
        for (name, *_), value in zip(results, tensors, strict=True):
            self.bind(name, value)

    # Loop

    def _convert_loop(self) -> None:
        node, body = self.node, self.attributes["body"]
        grouped = any(name in self.host.sequences for name in order.reads(node))
        if not grouped and plan_loops.loop(self, _nodes_in(body)):
            return
        inputs_or_empty = [*node.input, "", ""]
        carried = list(node.input[2:])
        scanned: list[list[str]] = [[] for _ in body.output[1 + len(carried) :]]
        nodes_each = max(1, _nodes_in(body))
        most = min(plan_loops.MOST_ITERATIONS, max(1, MOST_NODES // nodes_each))
        flag = self._condition(inputs_or_empty[1]) if inputs_or_empty[1] else ""
        count = self._trip_count(inputs_or_empty[0]) if flag != "no" else 0
        number = 0
        while flag != "no" and (count is None or number < count):
            if number == most:
                raise ValueError(self._too_many_iterations(count, most, flag))
            if flag and scanned:  # whether this iteration gives a row
                if grouped:
                    raise ValueError(
                        "it reads a sequence, and the run computes how many rows it gives: allowed is a "
                        "number of iterations that is known before the model runs; make the sequence one "
                        "tensor, by ConcatFromSequence"
                    )
                plan_loops.open_loop(self)
                return
            inputs = [self.set(f"{self.where}/{number}/iteration", np.array(number, np.int64))]
            inputs.append(flag or self.set(f"{self.where}/going", np.array(True)))
            names = [value.name for value in body.input]
            bound = dict(zip(names, [*inputs, *carried], strict=True))
            outputs = self.inline(body, f"{self.where}/{number}/", bound)
            after, values, rows = outputs[0], outputs[1 : 1 + len(carried)], outputs[1 + len(carried) :]
            carried = self._carried_after(flag, carried, values, number)
            for row, row_names in zip(rows, scanned, strict=True):
                row_names.append(row)
            flag = self._next_condition(flag, after, number)
            number += 1
        for name, value in zip(node.output, carried, strict=False):
            if name:
                self.alias(name, value)
        names = node.output[len(carried) :]
        if not number and any(names):
            self._bind_no_rows(names, body, carried)
            return
        for name, row_names in zip(names, scanned, strict=False):
            if name:
                self.bind(name, self.stacked(row_names, 0, name))

    def _bind_no_rows(self, names: Sequence[str], body: onnx.GraphProto, carried: Sequence[str]) -> None:
        """Make the scan outputs `names` empty; the body, which never runs, tells their types."""
        inputs = [self.set(f"{self.where}/none/iteration", np.array(0, np.int64))]
        inputs += [self.set(f"{self.where}/none/going", np.array(True)), *carried]
        bound = dict(zip((value.name for value in body.input), inputs, strict=True))
        rows = self.inline(body, f"{self.where}/none/", bound)[-len(names) :]
        for name, row in zip(names, rows, strict=True):
            if name:
                ty = self._type(row)
                self.bind(name, relax.op.zeros(relax.ShapeExpr([0, *ty.shape]), str(ty.dtype)))

    def _trip_count(self, name: str) -> int | None:
        """The greatest number of iterations; None if the condition alone ends the loop."""
        if not name:
            return None
        count = self.constant(name)
        if count is None:
            raise ValueError(
                f"its trip count '{name}' is computed when the model runs; make it a constant, the greatest "
                "count, and end the loop by its condition"
            )
        return int(count.reshape(-1)[0])

    def _condition(self, name: str) -> str:
        """The tensor of a condition; empty for one that is always true, `no` for one that is false."""
        value = self.constant(name)
        if value is None:
            self._scalar(name, "its condition")
            return name
        return "" if bool(value.reshape(-1)[0]) else "no"

    def _carried_after(self, flag: str, before: list[str], after: list[str], number: int) -> list[str]:
        """The carried values after an iteration, which runs only where `flag` is true."""
        if not flag:
            return list(after)
        values = []
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            if old in self.host.sequences or new in self.host.sequences:
                raise ValueError(
                    f"carried value {index} is a sequence, and the run ends the loop: unknown length"
                )
            name = f"{self.where}/{number}/carried{index}"
            values.append(self.bind(name, self._select(flag, new, old, f"carried value {index}")))
        return values

    def _next_condition(self, flag: str, after: str, number: int) -> str:
        """The condition of the next iteration; see `_condition`."""
        then = self._condition(after)
        if not flag or then == "no":
            return then
        if not then:
            return flag
        sides = [relax.op.reshape(self.host._tensor(name), relax.ShapeExpr([])) for name in (flag, then)]
        and_both = relax.op.logical_and(*[self.host.bb.normalize(side) for side in sides])
        return self.bind(f"{self.where}/{number}/going", and_both)

    def _too_many_iterations(self, count: int | None, most: int, flag: str) -> str:
        trips = (
            "no greatest number of iterations" if count is None or count > 1 << 40 else f"{count} iterations"
        )
        ends = ", and its end is computed when the model runs" if flag else ""
        return (
            f"it has {trips}{ends}; iterations are unrolled, and at most {most} of this body are: give a "
            "smaller constant trip count, or compute the steps with operators on whole tensors"
        )

    # SequenceMap

    def _convert_map(self) -> None:
        """Repeat the graph for each element of the sequences; tensors among the inputs stay the same."""
        node, known_sequences = self.node, self.host.sequences
        count = len(sequences.elements_of_sequence(known_sequences, node.input[0]))
        results: list[list[str]] = [[] for _ in node.output]
        names = [value.name for value in self.attributes["body"].input]
        lists = {
            name: sequences.elements_of_sequence(known_sequences, name)
            for name in node.input
            if name in known_sequences
        }
        for name, elements in lists.items():
            if len(elements) != count:
                raise ValueError(f"its sequence '{name}' has {len(elements)} elements, not {count}")
        for number in range(count):
            tensors = [lists[name][number] if name in lists else name for name in node.input]
            bound = dict(zip(names, tensors, strict=True))
            outputs = self.inline(self.attributes["body"], f"{self.where}/{number}/", bound)
            for elements, output in zip(results, outputs, strict=True):
                elements.append(output)
        known_sequences.update(
            (name, elements) for name, elements in zip(node.output, results, strict=True) if name
        )

    # Tools

    def list_of(self, name: str, count: int) -> list[int]:
        return [int(value) for value in self.attributes.get(name) or [0] * count]

    def row(self, name: str, axis: int, index: int, row: str) -> str:
        """Part `index` of a tensor along `axis`, without this axis."""
        source = self.host._tensor(name)
        slice_there = relax.op.take(source, relax.const([index], "int64"), axis)
        return self.bind(row, relax.op.squeeze(self.host.bb.normalize(slice_there), [axis]))

    def stacked(self, rows: Sequence[str], axis: int, output: str) -> Any:
        """The tensors `rows` stacked along a new axis, for the output `output`."""
        if not rows:
            raise ValueError(f"its output '{output}' has no rows: it runs no iteration")
        rank = len(self._type(rows[0]).shape) + 1
        new_axis = axis + rank if axis < 0 else axis
        slices = [
            self.host.bb.normalize(relax.op.expand_dims(self.host._tensor(row), new_axis)) for row in rows
        ]
        return relax.op.concat(slices, new_axis) if len(slices) > 1 else slices[0]


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Rename tensors of `graph`, also where graphs nested in it read them."""
    for tensor in graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for value in (*graph.input, *graph.output, *graph.value_info):
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                inner_names = {name for inner in attribute.g.node for name in inner.output}
                inner_names |= {value.name for value in (*attribute.g.input, *attribute.g.initializer)}
                _rename(attribute.g, {old: new for old, new in names.items() if old not in inner_names})


def _nodes_in(graph: onnx.GraphProto) -> int:
    """The number of nodes of `graph`, with the nodes of nested graphs."""
    inner = [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]
    return len(graph.node) + sum(_nodes_in(graph_inside) for graph_inside in inner)


def weights_of(graph: onnx.GraphProto) -> dict[str, np.ndarray[Any, Any]]:
    """The weights of a nested graph."""
    return {weight.name: numpy_helper.to_array(weight) for weight in graph.initializer}
