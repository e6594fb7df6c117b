"""Groups of tensors whose channels can be scaled together without changing the model's results.

A group begins at the input of an operator with weights and follows operators that a factor for each channel
passes through (ReLU, pooling, sums, reshapes that keep the channels), back to operators that can divide by
the factors (convolutions, dense layers, normalisations) and on to all operators that can multiply by them.
If it reaches anything else, the group does not exist.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from kiln.command_line.quantise.graphs import OnnxGraph, attribute

_PASS_FACTORS = frozenset(
    (
        "Relu",
        "LeakyRelu",
        "Clip",
        "MaxPool",
        "AveragePool",
        "GlobalAveragePool",
        "GlobalMaxPool",
        "Identity",
        "Dropout",
        "Reshape",
        "Flatten",
        "Squeeze",
        "Unsqueeze",
        "Transpose",
    )
)
_NORMS = frozenset({"LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"})


@dataclass
class ChannelGroup:
    """Tensors with a common factor for each of `channels` channels.

    `axes`: tensors and their channel axis. `divide`: nodes whose constants are divided by the factors, so
    that their output is. `multiply`: nodes with weights, whose input channels are multiplied. `inserted`:
    instead of `divide`, the one tensor after which a product with 1 / factors is inserted for `multiply`.
    """

    channels: int
    axes: dict[str, int] = field(default_factory=dict)
    divide: list[Any] = field(default_factory=list)
    multiply: list[Any] = field(default_factory=list)
    inserted: str = ""
    pending: list[tuple[str, int]] = field(default_factory=list)  # tensors that are not followed yet


class _NoGroupError(Exception):
    """A factor cannot pass here."""


def groups(graph: OnnxGraph) -> list[ChannelGroup]:
    """All groups of a model, in the order of their first consumers; no consumer is in two of them."""
    groups_in_order: list[ChannelGroup] = []
    scaled_nodes: set[str] = set()
    tensors_without_group: set[str] = set()
    for node in graph.nodes:
        channels = input_channels(graph, node)
        if not channels or node.name in scaled_nodes or node.input[0] in graph.outputs:
            continue
        group = ChannelGroup(channels)
        try:
            group.pending.append((node.input[0], _axis(graph, node)))
            while group.pending:
                if group.pending[-1][0] in tensors_without_group:
                    raise _NoGroupError
                _expand(graph, group, *group.pending.pop())
        except _NoGroupError:
            tensors_without_group |= set(group.axes)
            inserted = _group_after_norm(graph, node, channels)
            if inserted is None:
                continue
            group = inserted
        scaled_nodes |= {reader.name for reader in group.multiply}
        groups_in_order.append(group)
    return groups_in_order


def input_channels(graph: OnnxGraph, node: Any) -> int:
    """Number of channels that the weights of `node` read; 0 for an operator without constant weights."""
    weight = graph.weight(node)
    if weight is None or weight.dtype.name != "float32":
        return 0
    if node.op_type == "Conv":
        return int(weight.shape[1] * attribute(node, "group", 1))
    if node.op_type == "Gemm" and not attribute(node, "transA", 0):
        return int(weight.shape[1 if attribute(node, "transB", 0) else 0])
    if node.op_type == "MatMul" and weight.ndim == 2:
        return int(weight.shape[0])
    return 0


def _rank(graph: OnnxGraph, name: str) -> int:
    shape = graph.shape(name)
    if not shape:
        raise _NoGroupError
    return len(shape)


def _axis(graph: OnnxGraph, node: Any) -> int:
    """The channel axis of the input of an operator with weights."""
    rank = _rank(graph, node.input[0])
    return 1 if node.op_type == "Conv" else rank - 1


def _expand(graph: OnnxGraph, group: ChannelGroup, name: str, axis: int) -> None:
    """Add the tensor `name`, and to `pending` the tensors that share its factors. Raises _NoGroupError."""
    if name in group.axes:
        if group.axes[name] != axis:
            raise _NoGroupError
        return
    shape = graph.shape(name)
    if name not in graph.producer or name in graph.outputs or not shape or shape[axis] != group.channels:
        raise _NoGroupError
    group.axes[name] = axis
    _produced(graph, group, name, axis)
    for reader, index in graph.readers.get(name, ()):
        if index == 0 and input_channels(graph, reader) and _axis(graph, reader) == axis:
            group.multiply.append(reader)
        elif reader.op_type in _PASS_FACTORS and index == 0:
            _check_passes(graph, reader, axis)
            group.pending.append((reader.output[0], _axis_beyond(graph, reader, axis, forward=True)))
        elif reader.op_type == "Add":
            _sum(graph, group, reader, reader.output[0], axis)
        else:
            raise _NoGroupError


def _produced(graph: OnnxGraph, group: ChannelGroup, name: str, axis: int) -> None:
    """Follow the tensor `name` to the operator that produces it."""
    node = graph.producer[name]
    rank = _rank(graph, name)
    if node.op_type in ("Conv", "BatchNormalization"):
        divides = axis == 1 and all(graph.constant(operand) is not None for operand in node.input[1:3])
    elif node.op_type in ("Gemm", "MatMul"):
        weight = graph.weight(node)
        divides = axis == rank - 1 and weight is not None and weight.ndim == 2
        biases = [operand for operand in node.input[2:3] if operand]
        divides = divides and all(graph.constant(operand) is not None for operand in biases)
    elif node.op_type in _NORMS:
        last = attribute(node, "axis", -1) in (-1, rank - 1)
        divides = (
            last
            and axis == rank - 1
            and all(graph.constant(operand) is not None for operand in node.input[1:])
        )
    else:
        divides = False
        if node.op_type in _PASS_FACTORS:
            _check_passes(graph, node, axis)
            group.pending.append((node.input[0], _axis_beyond(graph, node, axis, forward=False)))
            return
        if node.op_type == "Add":
            _sum(graph, group, node, name, axis)
            return
    if not divides:
        raise _NoGroupError
    group.divide.append(node)


def _sum(graph: OnnxGraph, group: ChannelGroup, node: Any, name: str, axis: int) -> None:
    """An Add: its output `name` and both operands share factors; a constant operand is divided."""
    shape = graph.shape(name)
    for operand in node.input:
        value = graph.constant(operand)
        if value is None:
            if graph.shape(operand) != shape:
                raise _NoGroupError
            group.pending.append((operand, axis))
        elif all(node is not other for other in group.divide):
            if value.ndim > len(shape or ()):
                raise _NoGroupError
            group.divide.append(node)
    group.pending.append((name, axis))


def _check_passes(graph: OnnxGraph, node: Any, axis: int) -> None:
    """Raise _NoGroupError for pooling over `axis`, and for a Clip to anything but 0 and no upper limit.

    Pooling mixes elements of all axes but 0 and 1. A factor would move the upper limit of a channel, to the
    greatest value of the samples at best: channels of other inputs that go beyond it are then cut off.
    """
    if node.op_type.endswith("Pool") and axis != 1:
        raise _NoGroupError
    if node.op_type != "Clip":
        return
    limits = [graph.constant(name) if name else None for name in node.input[1:]]
    low = attribute(node, "min") if len(node.input) < 2 else limits[0]
    bounded = attribute(node, "max") is not None or (len(node.input) > 2 and bool(node.input[2]))
    if low is None or float(low) != 0.0 or bounded:
        raise _NoGroupError


def _axis_beyond(graph: OnnxGraph, node: Any, axis: int, *, forward: bool) -> int:
    """The channel axis of the output (`forward`) or the input of `node`, whose other side has it at `axis`.

    Raises _NoGroupError where the channels are not an axis of their own there.
    """
    if node.op_type == "Transpose":
        order = list(attribute(node, "perm", reversed(range(_rank(graph, node.input[0])))))
        return int(order.index(axis) if forward else order[axis])
    if node.op_type not in ("Reshape", "Flatten", "Squeeze", "Unsqueeze"):
        return axis
    near, beyond = (node.input[0], node.output[0]) if forward else (node.output[0], node.input[0])
    shape_here, shape_there = graph.shape(near), graph.shape(beyond)
    if not shape_here or not shape_there or None in shape_here[axis:]:
        raise _NoGroupError
    inner = math.prod(entry or 1 for entry in shape_here[axis + 1 :])
    for other_axis, size_there in enumerate(shape_there):
        after = shape_there[other_axis + 1 :]
        if (
            size_there == shape_here[axis]
            and None not in after
            and math.prod(entry or 1 for entry in after) == inner
        ):
            return other_axis
    raise _NoGroupError


def _group_after_norm(graph: OnnxGraph, node: Any, channels: int) -> ChannelGroup | None:
    """The group of a normalised tensor that more than operators with weights read, as in a residual sum."""
    name = node.input[0]
    norm = graph.producer.get(name)
    if norm is None or norm.op_type not in _NORMS or node.op_type == "Conv":
        return None
    readers_and_inputs = graph.readers[name]
    readers = [reader for reader, index in readers_and_inputs if index == 0 and input_channels(graph, reader)]
    shape = graph.shape(name)
    axes = {} if shape is None else {name: len(shape) - 1}
    return ChannelGroup(channels, axes, multiply=readers, inserted=name) if axes else None
