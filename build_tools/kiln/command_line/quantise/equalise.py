"""Equalisation: factors for the channels of activations, moved into the constants before and after them.

An activation has one scale for all of its channels, so channels much smaller than the greatest lose their
bits. Dividing each channel by a factor, and multiplying the weights that read it, changes nothing in float
(cross-layer equalisation of Nagel et al., 2019, where convolutions or dense layers divide; SmoothQuant of
Xiao et al., 2023, where a normalisation does). The factor is range^a / weight^(1 - a) of the channel. `a` is
the one, of several and of no change at all, for which the noise that rounding adds to the products is least,
on the statistics of the calibration data: noise of activations, step^2 / 12 times the weights' squares, and
noise of weights, step^2 / 12 times the activations' squares.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from kiln.arrays import Array
from kiln.command_line.quantise.graphs import OnnxGraph, attribute, drop_unused
from kiln.command_line.quantise.groups import ChannelGroup, groups
from kiln.command_line.quantise.statistics import Channels, channel_statistics

_STRENGTHS = (0.25, 0.5, 0.75, 1.0)
_WORTH = 1.02  # least ratio of noise for which weights are changed
_WORTH_A_STEP = 2.0  # and where a product with the factors has to be inserted
_SPREAD = 1e3  # greatest ratio of factors: channels that are almost always zero need no more


def equalise(model: onnx.ModelProto, runs: Sequence[Mapping[str, Array]], path: Path) -> int:
    """Equalise `model` in place, and return the number of groups of tensors that were changed.

    `runs` are samples; `path` is a file that may be overwritten.
    """
    graph = OnnxGraph(model)
    channel_groups = groups(graph)
    axes = {
        name: axis
        for group in channel_groups
        for name, axis in group.axes.items()
        if _is_measured(group, name)
    }
    statistics = channel_statistics(model, axes, runs, path)
    changed = 0
    for group in channel_groups:
        factors = _factors(graph, group, statistics)
        if factors is not None:
            _apply(graph, group, factors)
            changed += 1
    drop_unused(model)
    return changed


def _is_measured(group: ChannelGroup, name: str) -> bool:
    return any(node.input[0] == name for node in group.multiply)


def _factors(graph: OnnxGraph, group: ChannelGroup, statistics: Mapping[str, Channels]) -> Array | None:
    """The factors with the least noise; None if that of no factors is hardly greater."""
    reach = np.zeros(group.channels)
    weight = np.zeros(group.channels)
    for node in group.multiply:
        seen = statistics[node.input[0]]
        reach = np.maximum(reach, np.maximum(np.abs(seen.low), np.abs(seen.high)))
        values, channels = _by_channel(graph, node)
        np.maximum.at(weight, channels, np.abs(values).max(2))
    if not reach.max() > 0 or not weight.max() > 0:
        return None
    reach, weight = np.maximum(reach, reach.max() / _SPREAD), np.maximum(weight, weight.max() / _SPREAD)
    least = _noise(graph, group, statistics, np.ones(group.channels))
    least /= _WORTH_A_STEP if group.inserted else _WORTH
    best = None
    for strength in _STRENGTHS:
        factors = reach**strength / weight ** (1 - strength)
        factors /= math.exp(np.log(factors).mean())
        factors = np.clip(factors, factors.max() / _SPREAD, None)
        noise = _noise(graph, group, statistics, factors)
        if noise < least:
            least, best = noise, factors
    return None if best is None else best.astype(np.float32).astype(np.float64)


def _noise(
    graph: OnnxGraph, group: ChannelGroup, statistics: Mapping[str, Channels], factors: Array
) -> float:
    """Expected squares of the errors that 8 bits add to the products of a group."""
    noise = 0.0
    for node in group.multiply:
        seen = statistics[node.input[0]]
        weight, channels = _by_channel(graph, node)
        weight = weight * factors[channels][:, :, None]
        high, low = max(float((seen.high / factors).max()), 0.0), min(float((seen.low / factors).min()), 0.0)
        noise += ((high - low) / 255) ** 2 * float(np.square(weight).sum())
        steps = np.abs(weight).max((1, 2)) / 127
        power = (seen.power / factors**2)[channels].sum(1) * weight.shape[2]
        noise += float((np.square(steps) * power).sum())
    return noise


def _by_channel(graph: OnnxGraph, node: Any) -> tuple[Array, Array]:
    """The weights of `node` by channels, and the input channel of each of its weights.

    Shapes: (output channel, number of the input channel, position), and (output channel, number).
    """
    weight = graph.weight(node)
    assert weight is not None
    weight = weight.astype(np.float64)
    if node.op_type != "Conv":
        is_transposed = node.op_type == "Gemm" and attribute(node, "transB", 0)
        weight = (weight if is_transposed else weight.T)[:, :, None]
        return weight, np.broadcast_to(np.arange(weight.shape[1]), weight.shape[:2])
    group_count, outputs, inputs = int(attribute(node, "group", 1)), weight.shape[0], weight.shape[1]
    group_of_output = np.arange(outputs) // (outputs // group_count)
    return weight.reshape(outputs, inputs, -1), group_of_output[:, None] * inputs + np.arange(inputs)


def _apply(graph: OnnxGraph, group: ChannelGroup, factors: Array) -> None:
    for node in group.multiply:
        weight = graph.weight(node)
        assert weight is not None
        graph.replace(node, 1, (weight * _inputs(node, weight, factors)).astype(np.float32))
    for node in group.divide:
        _divide(graph, node, factors, group.axes)
    if group.inserted:
        _insert(graph, group, factors)


def _inputs(node: Any, weight: Array, factors: Array) -> Array:
    """Factors of input channels in the shape of the weights."""
    if node.op_type == "Conv":
        parts = int(attribute(node, "group", 1))
        rows = factors.reshape(parts, -1).repeat(weight.shape[0] // parts, 0)
        return rows.reshape(*rows.shape, *([1] * (weight.ndim - 2)))
    turned = node.op_type == "Gemm" and attribute(node, "transB", 0)
    return factors[None, :] if turned else factors[:, None]


def _divide(graph: OnnxGraph, node: Any, factors: Array, axes: Mapping[str, int]) -> None:
    """Divide the output of `node` by the factors, in its constants."""
    axis = axes[node.output[0]]
    if node.op_type == "Add":
        index = 0 if graph.constant(node.input[0]) is not None else 1
        rank = len(graph.shape(node.output[0]) or ())
        spread = factors.reshape(-1, *([1] * (rank - 1 - axis)))
        graph.replace(node, index, (_constant(graph, node, index) / spread).astype(np.float32))
        return
    weight = _constant(graph, node, 1)
    if node.op_type == "Conv":
        scale = factors.reshape(-1, *([1] * (weight.ndim - 1)))
    elif node.op_type == "Gemm" and attribute(node, "transB", 0):
        scale = factors[:, None]
    else:
        scale = factors
    graph.replace(node, 1, (weight / scale).astype(np.float32))
    if len(node.input) > 2 and node.input[2]:
        graph.replace(node, 2, (_constant(graph, node, 2) / factors).astype(np.float32))


def _constant(graph: OnnxGraph, node: Any, index: int) -> Array:
    value = graph.constant(node.input[index])
    assert value is not None
    return value


def _insert(graph: OnnxGraph, group: ChannelGroup, factors: Array) -> None:
    """Insert a product with 1 / factors after the tensor `group.inserted`, for the group's consumers only."""
    name = group.inserted
    node = onnx.helper.make_node("Mul", [name, ""], [f"{name}~smooth"], f"{name}~smooth")
    graph.replace(node, 1, (1 / factors).astype(np.float32))
    for reader in group.multiply:
        reader.input[0] = node.output[0]
    position = next(
        index for index, candidate in enumerate(graph.model.graph.node) if name in candidate.output
    )
    graph.model.graph.node.insert(position + 1, node)
    info = next((value for value in graph.model.graph.value_info if value.name == name), None)
    if info is not None:  # the quantiser reads types of tensors there
        value = graph.model.graph.value_info.add()
        value.CopyFrom(info)
        value.name = node.output[0]
