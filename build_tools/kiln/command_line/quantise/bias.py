"""Bias correction: rounded weights move the mean of each output channel, and the bias takes that back.

For every convolution and dense layer the float model also computes the same operator with the errors of its
rounded weights, on its own float input: the mean of the result over samples and positions is the error that
rounding adds to the channel (Nagel et al., 2019). Each layer is corrected for its own weights, in one pass
over the samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from kiln.arrays import Array
from kiln.command_line.quantise.graphs import OnnxGraph, attribute
from kiln.command_line.quantise.statistics import channel_statistics

_CORRECTED = ("Conv", "Gemm", "MatMul")


def corrections(
    model: onnx.ModelProto, quantised: onnx.ModelProto, runs: Sequence[Mapping[str, Array]], path: Path
) -> dict[str, Array]:
    """For nodes of the float `model`, by name: the value to subtract from the bias of each output channel.

    `quantised` is the QDQ form of the model; nodes whose weights it does not round are left out, and so are
    products without a bias. `path` is a file that may be overwritten.
    """
    graph = OnnxGraph(model)
    rounded = rounded_weights(quantised)
    extended = onnx.ModelProto()
    extended.CopyFrom(model)
    axes: dict[str, int] = {}
    owners: dict[str, str] = {}
    for node in graph.nodes:
        weight = graph.weight(node) if node.op_type in _CORRECTED else None
        if weight is None or node.input[1] not in rounded or bias_of(graph, node) is None:
            continue
        copy = extended.graph.node.add()
        copy.CopyFrom(node)
        copy.name, copy.output[0] = f"{node.name}~error", f"{node.output[0]}~error"
        del copy.input[2:]
        copy.input[1] = f"{node.input[1]}~error~{node.name}"
        error = rounded[node.input[1]].astype(np.float64) - weight
        extended.graph.initializer.append(numpy_helper.from_array(error.astype(np.float32), copy.input[1]))
        rank = len(graph.shape(node.output[0]) or ())
        axes[copy.output[0]] = 1 if node.op_type == "Conv" else max(rank, 2) - 1
        owners[copy.output[0]] = node.name
    statistics = channel_statistics(extended, axes, runs, path)
    return {owners[name]: seen.mean for name, seen in statistics.items()}


def rounded_weights(quantised: onnx.ModelProto) -> dict[str, Array]:
    """Constants of a QDQ model after quantisation, as float32, by their name in the float model."""
    graph = OnnxGraph(quantised)
    constants: dict[str, Array] = {}
    for node in graph.nodes:
        values = graph.constant(node.input[0]) if node.op_type == "DequantizeLinear" else None
        suffix = "_quantized"
        if values is None or not node.input[0].endswith(suffix):
            continue
        scale = graph.constant(node.input[1])
        zero = graph.constant(node.input[2]) if len(node.input) > 2 else np.zeros(1)
        assert scale is not None and zero is not None
        shape = [1] * values.ndim
        if scale.size > 1:
            shape[attribute(node, "axis", 1)] = -1
        levels = values.astype(np.float64) - zero.astype(np.float64).reshape(shape)
        constants[node.input[0].removesuffix(suffix)] = (levels * scale.reshape(shape)).astype(np.float32)
    return constants


def bias_of(graph: OnnxGraph, node: Any) -> tuple[Any, int] | None:
    """The node and operand that add a bias to the result of `node`; None where nothing does.

    Operand 2 of a convolution or Gemm, also where it is absent; a constant that an Add adds to a product.
    """
    if node.op_type == "Conv":
        return node, 2
    if node.op_type == "Gemm":
        return (node, 2) if float(attribute(node, "beta", 1.0)) == 1.0 else None
    readers = graph.readers.get(node.output[0], [])
    if len(readers) != 1 or readers[0][0].op_type != "Add" or node.output[0] in graph.outputs:
        return None
    index = 1 - readers[0][1]
    value = graph.constant(readers[0][0].input[index])
    channels = graph.shape(node.input[1])
    for_each_channel = value is not None and channels is not None and value.shape[-1:] == channels[-1:]
    return (readers[0][0], index) if for_each_channel else None


def correct(model: onnx.ModelProto, changes: Mapping[str, Array], float_nodes: Sequence[str] = ()) -> None:
    """Subtract `changes` from the biases of `model`, except of `float_nodes`, whose weights stay float."""
    graph = OnnxGraph(model)
    for node in list(graph.nodes):
        owner_and_input = (
            bias_of(graph, node) if node.name in changes and node.name not in float_nodes else None
        )
        if owner_and_input is None:
            continue
        owner, index = owner_and_input
        old_bias = graph.constant(owner.input[index]) if len(owner.input) > index else None
        bias = np.zeros(len(changes[node.name]), np.float32) if old_bias is None else old_bias
        graph.replace(owner, index, (bias - changes[node.name]).astype(np.float32))
