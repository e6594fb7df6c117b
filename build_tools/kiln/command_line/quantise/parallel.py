"""Parallel convolutions become one before a model is quantised, as a build of the float model does.

    f * (conv(x, a) + conv(x, b) + s x) = conv(x, f * (a + b + s at the tap that reads x))

Networks with several branches in training, as RepVGG, MobileOne and YOLOv6, may be exported as trained.
Levels of each branch cannot be joined later: a quantised model would have several convolutions, each with
rounded results, where the float model has one. A convolution takes up another one with taps at its own.
`kiln.graph.parallel_convolutions` does the same in imported graphs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from kiln.arrays import Array
from kiln.command_line.quantise.graphs import OnnxGraph, attribute, drop_unused

_SUMS = ("Add", "Sub", "Sum")
_FACTORS = ("Mul", "Div", "BatchNormalization")


@dataclass
class _SumTerm:
    """A part of a sum: `factor`, one for each channel or one for all, times a convolution or a tensor.

    conv: the convolution; None for the tensor `data`. kernel: (O, I, taps…), with the factor.
    """

    data: str
    factor: Array
    conv: Any = None
    kernel: Array | None = None
    bias: Array | float = 0.0

    @property
    def is_data(self) -> bool:
        """Whether the term is a tensor as it is, or minus it: no part of a kernel with small weights."""
        return self.conv is None and bool((np.abs(self.factor) == 1).all())


class _SumOfTerms:
    """The terms of a sum, and the constants for each channel that are added."""

    def __init__(self, graph: OnnxGraph, rank: int) -> None:
        self.graph, self.rank = graph, rank
        self.terms: list[_SumTerm] = []
        self.added: Array = np.zeros(1)

    def add(self, name: str, factor: Array, is_result: bool = False) -> None:
        """Add `factor` times the tensor `name`, whose parts are terms if nothing else reads them."""
        graph, node = self.graph, self.graph.producer.get(name)
        constant = self._per_channel(name)
        if constant is not None:
            self.added = self.added + factor * constant
            return
        alone = is_result or (len(graph.readers.get(name, ())) == 1 and name not in graph.outputs)
        if node is None or not alone:
            self.terms.append(_SumTerm(name, factor))
        elif node.op_type in _SUMS:
            for number, operand in enumerate(node.input):
                self.add(operand, -factor if node.op_type == "Sub" and number else factor)
        elif node.op_type in _FACTORS and (scaled := self._scaled(node)) is not None:
            data, scale, shift = scaled
            self.added = self.added + factor * shift
            self.add(data, factor * scale)
        elif node.op_type == "Conv" and _is_plain(graph, node):
            self._add_conv(node, factor)
        else:
            self.terms.append(_SumTerm(name, factor))

    def _add_conv(self, node: Any, factor: Array) -> None:
        weight = self.graph.constant(node.input[1])
        assert weight is not None
        kernel = weight.astype(np.float64) * factor.reshape(-1, *([1] * (weight.ndim - 1)))
        bias = self.graph.constant(node.input[2]) if len(node.input) > 2 and node.input[2] else None
        self.terms.append(
            _SumTerm(node.input[0], factor, node, kernel, 0.0 if bias is None else factor * bias)
        )

    def _scaled(self, node: Any) -> tuple[str, Array, Array] | None:
        """What `node` scales, by how much and what it adds for each channel; None if that is not constant."""
        if node.op_type == "BatchNormalization":
            values = [self.graph.constant(name) for name in node.input[1:5]]
            if any(value is None for value in values) or attribute(node, "training_mode", 0):
                return None
            scale, shift, mean, variance = (value.astype(np.float64) for value in values if value is not None)
            factor = scale / np.sqrt(variance + attribute(node, "epsilon", 1e-5))
            return node.input[0], factor, shift - mean * factor
        data, number = node.input
        if node.op_type == "Mul" and self.graph.constant(data) is not None:
            data, number = number, data
        value = self._per_channel(number)
        if value is None or self.graph.constant(data) is not None:
            return None
        if node.op_type == "Div":
            value = 1.0 / value if value.all() else None
        return None if value is None else (data, value, np.zeros(1))

    def _per_channel(self, name: str) -> Array | None:
        """A constant with a value for each channel, axis 1, or with one, in double precision."""
        value = self.graph.constant(name)
        if value is None or value.ndim > self.rank or value.dtype.kind != "f":
            return None
        shape = (1,) * (self.rank - value.ndim) + value.shape
        return value.astype(np.float64).reshape(-1) if value.size == shape[1] else None


def join_parallel(model: onnx.ModelProto) -> int:
    """Join parallel convolutions of `model` in place; returns how many convolutions take up others."""
    graph = OnnxGraph(model)
    joined, removed = 0, set[str]()
    for node in reversed(list(graph.nodes)):  # whole sums before their parts
        shape = graph.shape(node.output[0]) if node.op_type in (*_SUMS, *_FACTORS) else None
        if shape is None or len(shape) < 3 or node.output[0] in removed:
            continue
        total = _SumOfTerms(graph, len(shape))
        total.add(node.output[0], np.ones(1), is_result=True)
        groups = _grouped(total.terms)
        count = sum(len(group) > 1 for group in groups)
        if count and (made := _made(graph, node, groups, total.added)) is not None:
            removed |= set(_parts(graph, node, total.terms))
            at = list(model.graph.node).index(node)
            del model.graph.node[at]
            for number, one in enumerate(made):
                model.graph.node.insert(at + number, one)
            joined += count
    for node in [node for node in model.graph.node if node.output[0] in removed]:
        model.graph.node.remove(node)
    drop_unused(model)
    return joined


def _is_plain(graph: OnnxGraph, node: Any) -> bool:
    """Whether the weights and the bias of a convolution are constants, and its padding is given."""
    given = [name for name in node.input[1:] if name]
    padded = attribute(node, "auto_pad", b"NOTSET") == b"NOTSET"
    return padded and all((value := graph.constant(name)) is not None and value.dtype.name == "float32"
                          for name in given)  # fmt: skip


def _parts(graph: OnnxGraph, node: Any, terms: list[_SumTerm]) -> Iterator[str]:
    """The tensors inside of the sum that `node` ends: those that its terms are computed to."""
    ends = {term.data for term in terms if term.conv is None}
    convs = {term.conv.output[0] for term in terms if term.conv is not None}
    for name in node.input:
        if name in graph.producer and name not in ends and graph.constant(name) is None:
            yield name
            if name not in convs:
                yield from _parts(graph, graph.producer[name], terms)


def _grouped(terms: list[_SumTerm]) -> list[list[_SumTerm]]:
    """Groups of terms; the first of each has taken up the others. Most taps first."""
    groups: list[list[_SumTerm]] = []
    for term in sorted(terms, key=lambda term: 0 if term.kernel is None else -term.kernel[0, 0].size):
        for group in groups:
            taps = None if term.is_data else _taps(group[0], term)
            if taps is not None:
                _take_up(group[0], term, taps)
                group.append(term)
                break
        else:
            groups.append([term])
    return groups


def _window(term: _SumTerm) -> tuple[Array, Array, Array, Array, Array]:
    """Taps, padding before and after, strides and gaps of each axis."""
    if term.conv is None or term.kernel is None:
        return np.array(1), np.array(0), np.array(0), np.array(1), np.array(1)
    rank = term.kernel.ndim - 2
    pads = np.array(attribute(term.conv, "pads", [0] * 2 * rank))
    strides, gaps = (np.array(attribute(term.conv, name, [1] * rank)) for name in ("strides", "dilations"))
    return np.array(term.kernel.shape[2:]), pads[:rank], pads[rank:], strides, gaps


def _taps(taker: _SumTerm, other: _SumTerm) -> tuple[slice, ...] | None:
    """The taps of `taker` that read what those of `other` read; None if it cannot take `other` up."""
    if taker.conv is None or taker.kernel is None or taker.data != other.data:
        return None
    groups = attribute(taker.conv, "group", 1)
    if other.conv is None and taker.kernel.shape[1] * groups != taker.kernel.shape[0]:
        return None
    if other.conv is not None and attribute(other.conv, "group", 1) != groups:
        return None
    count, before, after, strides, gaps = _window(taker)
    other_count, other_before, other_after, other_strides, other_gaps = np.broadcast_arrays(
        *_window(other), count
    )[:5]
    step = np.where(other_count > 1, other_gaps, gaps)
    away = before - other_before
    sizes = before + after - gaps * (count - 1), other_before + other_after - other_gaps * (other_count - 1)
    if (strides != other_strides).any() or (sizes[0] != sizes[1]).any():
        return None
    if (away % gaps).any() or (step % gaps).any():
        return None
    first, every = away // gaps, step // gaps
    last = first + (other_count - 1) * every
    if (first < 0).any() or (last >= count).any():
        return None
    return tuple(slice(int(a), int(b) + 1, int(c)) for a, b, c in zip(first, last, every, strict=True))


def _take_up(taker: _SumTerm, other: _SumTerm, taps: tuple[slice, ...]) -> None:
    assert taker.kernel is not None
    if other.kernel is not None:
        at: tuple[Any, ...] = (slice(None), slice(None), *taps)
        taker.kernel[at] += other.kernel
    else:
        channels = np.arange(taker.kernel.shape[0])
        at = (channels, channels % taker.kernel.shape[1], *(tap.start for tap in taps))
        taker.kernel[at] += other.factor
    taker.bias = taker.bias + other.bias


def _made(graph: OnnxGraph, node: Any, groups: list[list[_SumTerm]], added: Array) -> list[Any] | None:
    """The nodes that compute the sum that `node` ended; None if a kernel would not be finite."""
    made: list[Any] = []
    constants: dict[str, Array] = {}
    result = node.output[0]
    terms = sorted((group[0] for group in groups), key=lambda term: term.conv is None)
    names = [result] + [f"{result}~{number}" for number in range(1, 2 * len(terms))]
    parts = []
    for number, term in enumerate(terms):
        name = names.pop()
        if term.conv is not None and term.kernel is not None:
            bias = np.broadcast_to(term.bias + (0 if number else added), term.kernel.shape[:1])
            constants |= {f"{name}.kernel": term.kernel, f"{name}.bias": bias}
            copy = onnx.NodeProto()
            copy.CopyFrom(term.conv)
            del copy.input[:], copy.output[:]
            copy.input.extend((term.data, f"{name}.kernel", f"{name}.bias"))
            copy.output.append(name)
            made.append(copy)
        elif (term.factor == 1).all():
            name = term.data
        else:
            constants[f"{name}.factor"] = term.factor.reshape(
                -1, *([1] * (len(graph.shape(result) or ()) - 2))
            )
            made.append(helper.make_node("Mul", [term.data, f"{name}.factor"], [name], f"{name}.scale"))
        parts.append(name)
    total = parts[0]
    for part in parts[1:]:
        made.append(helper.make_node("Add", [total, part], [names.pop()], f"{node.name}~{len(made)}"))
        total = made[-1].output[0]
    made[-1].output[0] = result
    with np.errstate(over="ignore"):
        arrays = {name: value.astype(np.float32) for name, value in constants.items()}
    if not all(np.isfinite(value).all() for value in arrays.values()):
        return None
    graph.model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in arrays.items())
    return made
