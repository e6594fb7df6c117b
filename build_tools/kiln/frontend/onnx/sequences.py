"""Sequences and optional values inside a graph: lists of tensors, known before the model runs.

A sequence is a list of names of tensors at build time; it does not exist in a run. A node is refused where
the number of elements, or the position of an element, is known only when the model runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper

from kiln.extents import shape_of
from kiln.frontend.onnx.value import from_array

# A list of names for a sequence; None for an optional value that is absent.
Sequences = dict[str, "list[str] | None"]
MOST_ELEMENTS = 1024


def elements_of_sequence(sequences: Sequences, name: str) -> list[str]:
    """The elements of the sequence `name`. Raises ValueError for a tensor, and for an absent optional."""
    if name not in sequences:
        raise ValueError(f"its input '{name}' is not a sequence")
    elements = sequences[name]
    if elements is None:
        raise ValueError(f"its input '{name}' is an optional value that is absent")
    return elements


class _SequenceNode:
    """A node about sequences, converted in the importer `host`."""

    def __init__(self, host: Any, node: onnx.NodeProto) -> None:
        self.host, self.node = host, node
        self.known: Sequences = host.sequences
        self.attributes = {
            attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute
        }
        self._count = 0

    def list_at(self, index: int) -> list[str]:
        """Input `index`, a sequence."""
        return elements_of_sequence(self.known, self.node.input[index])

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
        return [int(element) for element in value.extents()]

    def position_in(self, index: int, count: int) -> int | None:
        """A position in a sequence, counted from its end if below 0; None for the last."""
        position_input = self.numbers(index)
        if position_input is None:
            return None
        position = position_input[0] + count if position_input[0] < 0 else position_input[0]
        if not 0 <= position < count:
            raise ValueError(
                f"its position {position_input[0]} is outside of the sequence of {count} elements"
            )
        return position

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

    def set_sequence(self, elements: list[str] | None, output: int = 0) -> None:
        """Make output `output` the sequence `elements`; None: an optional value that is absent."""
        self.known[self.node.output[output]] = elements

    def alias(self, source: str) -> None:
        """Make the first output the tensor or the sequence `source`."""
        alias(self.host, self.node.output[0], source)


def pairs(host: Any, yes: str, no: str, result: str) -> list[tuple[str, str]]:
    """The elements of two sequences side by side. Raises ValueError, naming `result`, for other numbers."""
    element_lists = [host.sequences.get(name) for name in (yes, no)]
    if element_lists[0] is None or element_lists[1] is None or len(element_lists[0]) != len(element_lists[1]):
        lengths = " and ".join(
            "none" if elements is None else f"{len(elements)} elements" for elements in element_lists
        )
        raise ValueError(
            f"{result} is a sequence of {lengths}, depending on a value of the run: allowed is one number"
        )
    return list(zip(*element_lists, strict=True))


def alias(host: Any, name: str, source: str) -> None:
    """Make `name` the tensor or the sequence `source`."""
    for table in (host._nodes, host._values, host.sequences):
        table.pop(name, None)
        if source in table:
            table[name] = table[source]


def _construct(node: _SequenceNode) -> None:
    node.set_sequence(list(node.node.input))


def _empty(node: _SequenceNode) -> None:
    node.set_sequence([])


def _insert(node: _SequenceNode) -> None:
    elements = node.list_at(0)
    position_input = node.numbers(2)
    position = (
        len(elements)
        if position_input is None
        else position_input[0] + len(elements) * (position_input[0] < 0)
    )
    if not 0 <= position <= len(elements):
        raise ValueError(f"its position {position} is outside of the sequence of {len(elements)} elements")
    if len(elements) == MOST_ELEMENTS:
        raise ValueError(f"a sequence of more than {MOST_ELEMENTS} elements")
    node.set_sequence([*elements[:position], node.node.input[1], *elements[position:]])


def _erase(node: _SequenceNode) -> None:
    elements = node.list_at(0)
    position_given = node.position_in(1, len(elements))
    position = len(elements) - 1 if position_given is None else position_given
    if not elements:
        raise ValueError("its sequence has no elements")
    node.set_sequence([*elements[:position], *elements[position + 1 :]])


def _at(node: _SequenceNode) -> None:
    elements = node.list_at(0)
    position = node.position_in(1, len(elements))
    assert position is not None  # ONNX's checker requires the input
    node.alias(elements[position])


def _length(node: _SequenceNode) -> None:
    count = np.array(len(node.list_at(0)), np.int64)
    node.host._values[node.node.output[0]] = from_array(count, of_shape=True)


def _split(node: _SequenceNode) -> None:
    """SplitToSequence: parts of the sizes in its second input; without sizes, slices of one element."""
    source, attributes = node.node.input[0], node.attributes
    shape = shape_of(node.host._tensor(source))
    axis = int(attributes.get("axis", 0)) % len(shape)
    size = shape[axis]
    part_sizes = node.host._values.get(node.node.input[1]) if len(node.node.input) > 1 else None
    if (
        part_sizes is not None
        and len(part_sizes.items.shape) == 1
        and not (part_sizes.is_constant and isinstance(size, int))
    ):
        count = part_sizes.items.size  # parts of sizes that depend on dimensions, or of an axis that does
        if not 1 <= count <= MOST_ELEMENTS:
            raise ValueError(f"it has {count} parts, allowed: 1..{MOST_ELEMENTS}")
        node.set_sequence(node.emit("Split", [source, node.node.input[1]], count, axis=axis))
        return
    if not isinstance(size, int):
        raise ValueError(
            f"its axis {axis} has a dynamic size: the number of elements must be known; fix it in 'dims'"
        )
    sizes_input = node.numbers(1)
    scalar = sizes_input is not None and not len(node.host._values[node.node.input[1]].items.shape)
    sizes = [1] * size if sizes_input is None else list(sizes_input)
    if sizes_input is not None and scalar:
        if sizes_input[0] < 1:
            raise ValueError(f"its parts have {sizes_input[0]} elements, allowed: 1 and more")
        sizes = [min(sizes_input[0], size - start) for start in range(0, size, sizes_input[0])]
    if sum(sizes) != size or min(sizes, default=0) < 0 or len(sizes) > MOST_ELEMENTS:
        raise ValueError(
            f"its parts {sizes[:8]} do not make up the axis of {size}, or are over {MOST_ELEMENTS}"
        )
    elements, start = [], 0
    for length in sizes:
        ends = [node.constant([number]) for number in (start, start + length, axis)]
        (element,) = node.emit("Slice", [source, *ends])
        if sizes_input is None and not attributes.get("keepdims", 1):
            (element,) = node.emit("Squeeze", [element, ends[2]])
        elements.append(element)
        start += length
    node.set_sequence(elements)


def _concat(node: _SequenceNode) -> None:
    elements, axis = node.list_at(0), int(node.attributes["axis"])
    if not elements:
        raise ValueError("its sequence has no elements")
    if node.attributes.get("new_axis", 0):
        axes = node.constant([axis])
        elements = [node.emit("Unsqueeze", [element, axes])[0] for element in elements]
    node.alias(node.emit("Concat", elements, axis=axis)[0])


def _optional(node: _SequenceNode) -> None:
    if not node.node.input:
        node.set_sequence(None)
    else:
        node.alias(node.node.input[0])


def _has_element(node: _SequenceNode) -> None:
    name = node.node.input[0] if node.node.input else ""
    present = bool(name) and node.known.get(name, name) is not None
    node.host._values[node.node.output[0]] = from_array(np.array(present), of_shape=True)


def _element(node: _SequenceNode) -> None:
    name = node.node.input[0]
    if node.known.get(name, name) is None:
        raise ValueError(f"its input '{name}' is an optional value that is absent")
    node.alias(name)


_KINDS: dict[str, Callable[[_SequenceNode], None]] = {
    "ConcatFromSequence": _concat,
    "Optional": _optional,
    "OptionalGetElement": _element,
    "OptionalHasElement": _has_element,
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

    Raises ValueError for a number of elements or a position that is not known before the model runs.
    """
    if node.op_type == "Identity" and node.input[0] in host.sequences:
        alias(host, node.output[0], node.input[0])
        return True
    if node.op_type not in _KINDS:
        return False
    _KINDS[node.op_type](_SequenceNode(host, node))
    return True
