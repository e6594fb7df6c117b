"""Sequences and optional values inside a graph: lists of tensors, known before the model runs.

A sequence is a list of names of tensors, and no value of the run. Where its number of elements, or the place
of an element, is known only when the model runs, the node is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper

from kiln.frontend.onnx.node import extents
from kiln.frontend.onnx.value import from_array

# A list of names for a sequence; None for an optional value that is absent.
Sequences = dict[str, "list[str] | None"]
MOST_ELEMENTS = 1024


def listed(known: Sequences, name: str) -> list[str]:
    """The elements of the sequence `name`. Raises ValueError for a tensor, and for an absent optional."""
    if name not in known:
        raise ValueError(f"its input '{name}' is not a sequence")
    found = known[name]
    if found is None:
        raise ValueError(f"its input '{name}' is an optional value that is absent")
    return found


class _Node:
    """One node in the importer `host`."""

    def __init__(self, host: Any, node: onnx.NodeProto) -> None:
        self.host, self.node = host, node
        self.known: Sequences = host.sequences
        self.attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        self._count = 0

    def list_at(self, index: int) -> list[str]:
        """Input `index`, a sequence."""
        return listed(self.known, self.node.input[index])

    def numbers(self, index: int) -> list[int] | None:
        """The elements of input `index`; None if it is omitted. Raises ValueError if they are not known."""
        if index >= len(self.node.input) or not self.node.input[index]:
            return None
        name = self.node.input[index]
        value = self.host._values.get(name)
        if value is None or not value.is_constant:
            raise ValueError(
                f"its input '{name}' is not known before the model runs: elements of a sequence are tensors "
                "of their own; stack them and use Gather"
            )
        return [int(item) for item in value.extents()]

    def place(self, index: int, count: int) -> int | None:
        """A place in a sequence, counted from its end if below 0; None for the last."""
        given = self.numbers(index)
        if given is None:
            return None
        place = given[0] + count if given[0] < 0 else given[0]
        if not 0 <= place < count:
            raise ValueError(f"its place {given[0]} is outside of the sequence of {count} elements")
        return place

    def emit(self, op: str, inputs: list[str], count: int = 1, **attributes: Any) -> list[str]:
        """The results of another operator, converted as if it stood in the file."""
        names = []
        for _ in range(count):
            self._count += 1
            names.append(f"{self.node.output[0]}/{op}_{self._count}")
        self.host._read.update(names)
        self.host._add(helper.make_node(op, inputs, names, self.node.name, **attributes))
        return names

    def constant(self, value: Any) -> str:
        """A constant tensor of int64."""
        self._count += 1
        name = f"{self.node.output[0]}/constant_{self._count}"
        self.host._values[name] = from_array(np.array(value, np.int64), of_shape=True)
        return name

    def give(self, elements: list[str] | None, output: int = 0) -> None:
        """Make an output a sequence."""
        self.known[self.node.output[output]] = elements

    def alias(self, source: str) -> None:
        """Make the output what `source` is."""
        alias(self.host, self.node.output[0], source)


def pairs(host: Any, yes: str, no: str, what: str) -> list[tuple[str, str]]:
    """The elements of two sequences side by side. Raises ValueError, naming `what`, for other numbers."""
    found = [host.sequences.get(name) for name in (yes, no)]
    if found[0] is None or found[1] is None or len(found[0]) != len(found[1]):
        shown = " and ".join("none" if each is None else f"{len(each)} elements" for each in found)
        raise ValueError(
            f"{what} is a sequence of {shown}, depending on a value of the run: allowed is one number"
        )
    return list(zip(*found, strict=True))


def alias(host: Any, name: str, source: str) -> None:
    """Make `name` the tensor or the sequence `source`."""
    for kept in (host._nodes, host._values, host.sequences):
        kept.pop(name, None)
        if source in kept:
            kept[name] = kept[source]


def _construct(node: _Node) -> None:
    node.give(list(node.node.input))


def _empty(node: _Node) -> None:
    node.give([])


def _insert(node: _Node) -> None:
    elements = node.list_at(0)
    place = node.numbers(2)
    at = len(elements) if place is None else place[0] + len(elements) * (place[0] < 0)
    if not 0 <= at <= len(elements):
        raise ValueError(f"its place {at} is outside of the sequence of {len(elements)} elements")
    if len(elements) == MOST_ELEMENTS:
        raise ValueError(f"a sequence of more than {MOST_ELEMENTS} elements")
    node.give([*elements[:at], node.node.input[1], *elements[at:]])


def _erase(node: _Node) -> None:
    elements = node.list_at(0)
    place = node.place(1, len(elements))
    at = len(elements) - 1 if place is None else place
    if not elements:
        raise ValueError("its sequence has no elements")
    node.give([*elements[:at], *elements[at + 1 :]])


def _at(node: _Node) -> None:
    elements = node.list_at(0)
    place = node.place(1, len(elements))
    assert place is not None  # ONNX's checker requires the input
    node.alias(elements[place])


def _length(node: _Node) -> None:
    count = np.array(len(node.list_at(0)), np.int64)
    node.host._values[node.node.output[0]] = from_array(count, of_shape=True)


def _split(node: _Node) -> None:
    """SplitToSequence: parts of given sizes; without sizes, slices of one element."""
    source, attributes = node.node.input[0], node.attributes
    shape = extents(node.host._tensor(source))
    axis = int(attributes.get("axis", 0)) % len(shape)
    size = shape[axis]
    if not isinstance(size, int):
        raise ValueError(
            f"its axis {axis} has an open size: the number of elements must be known; fix it in 'dims'"
        )
    given = node.numbers(1)
    scalar = given is not None and not len(node.host._values[node.node.input[1]].items.shape)
    sizes = [1] * size if given is None else list(given)
    if given is not None and scalar:
        if given[0] < 1:
            raise ValueError(f"its parts have {given[0]} elements, allowed: 1 and more")
        sizes = [min(given[0], size - start) for start in range(0, size, given[0])]
    if sum(sizes) != size or min(sizes, default=0) < 0 or len(sizes) > MOST_ELEMENTS:
        raise ValueError(
            f"its parts {sizes[:8]} do not make up the axis of {size}, or are over {MOST_ELEMENTS}"
        )
    parts, start = [], 0
    for length in sizes:
        ends = [node.constant([number]) for number in (start, start + length, axis)]
        (part,) = node.emit("Slice", [source, *ends])
        if given is None and not attributes.get("keepdims", 1):
            (part,) = node.emit("Squeeze", [part, ends[2]])
        parts.append(part)
        start += length
    node.give(parts)


def _concat(node: _Node) -> None:
    elements, axis = node.list_at(0), int(node.attributes["axis"])
    if not elements:
        raise ValueError("its sequence has no elements")
    if node.attributes.get("new_axis", 0):
        axes = node.constant([axis])
        elements = [node.emit("Unsqueeze", [element, axes])[0] for element in elements]
    node.alias(node.emit("Concat", elements, axis=axis)[0])


def _optional(node: _Node) -> None:
    if not node.node.input:
        node.give(None)
    else:
        node.alias(node.node.input[0])


def _is_there(node: _Node) -> None:
    name = node.node.input[0] if node.node.input else ""
    there = bool(name) and node.known.get(name, name) is not None
    node.host._values[node.node.output[0]] = from_array(np.array(there), of_shape=True)


def _element(node: _Node) -> None:
    name = node.node.input[0]
    if node.known.get(name, name) is None:
        raise ValueError(f"its input '{name}' is an optional value that is absent")
    node.alias(name)


_KINDS: dict[str, Callable[[_Node], None]] = {
    "ConcatFromSequence": _concat,
    "Optional": _optional,
    "OptionalGetElement": _element,
    "OptionalHasElement": _is_there,
    "SequenceAt": _at,
    "SequenceConstruct": _construct,
    "SequenceEmpty": _empty,
    "SequenceErase": _erase,
    "SequenceInsert": _insert,
    "SequenceLength": _length,
    "SplitToSequence": _split,
}
KINDS = frozenset(_KINDS)


def run(host: Any, node: onnx.NodeProto) -> bool:
    """Convert `node` in the importer `host` if it is about sequences or optionals; returns whether it is.

    Raises ValueError for what is not known before the model runs.
    """
    if node.op_type == "Identity" and node.input[0] in host.sequences:
        alias(host, node.output[0], node.input[0])
        return True
    if node.op_type not in _KINDS:
        return False
    _KINDS[node.op_type](_Node(host, node))
    return True
