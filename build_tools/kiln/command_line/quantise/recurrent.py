"""Weights of LSTM, GRU and RNN layers in int8: onnxruntime.quantization leaves these layers in float.

Their weights become int8 before a DequantizeLinear, symmetric, with a scale for each row of a gate that both
directions share. The layers compute with floats: nothing but the weights is rounded.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from kiln.command_line.quantise.graphs import OnnxGraph
from kiln.onnx_domains import opset_of

RECURRENT = ("GRU", "LSTM", "RNN")
_OPERANDS = (1, 2)  # weights of the input, and of the state: (directions, gates * hidden, …)
_LEAST_OPSET = 13  # from which DequantizeLinear has an axis
_GREATEST = 127


def is_recurrent(graph: OnnxGraph, node: Any) -> bool:
    """Whether `node` is a recurrent layer whose weights can be rounded."""
    has_axis = opset_of(graph.model) >= _LEAST_OPSET
    return node.op_type in RECURRENT and has_axis and any(_weights(graph, node))


def _weights(graph: OnnxGraph, node: Any) -> list[int]:
    """The operands of `node` that are constant matrices of floats."""
    values = {index: graph.constant(node.input[index]) for index in _OPERANDS if index < len(node.input)}
    return [
        i
        for i, value in values.items()
        if value is not None and value.ndim == 3 and value.dtype == np.float32
    ]


def round_recurrent(model: onnx.ModelProto, names: Collection[str]) -> None:
    """Store the weights of the recurrent layers `names` of `model` in int8, before a DequantizeLinear."""
    graph = OnnxGraph(model)
    stored: dict[str, str] = {}
    added: list[onnx.NodeProto] = []
    for node in graph.nodes:
        if node.name not in names or not is_recurrent(graph, node):
            continue
        for index in _weights(graph, node):
            name = node.input[index]
            if name not in stored:
                value = graph.constant(name)
                assert value is not None
                scale = np.abs(value).max(axis=(0, 2)) / np.float32(_GREATEST)
                scale = np.where(scale > 0, scale, 1).astype(np.float32)
                levels = np.round(value / scale[:, None]).clip(-_GREATEST, _GREATEST).astype(np.int8)
                stem = f"{name}_recurrent"
                stored[name] = f"{stem}_DequantizeLinear_Output"
                zeros = np.zeros(scale.shape, np.int8)
                parts = {f"{stem}_quantized": levels, f"{stem}_scale": scale, f"{stem}_zero_point": zeros}
                model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in parts.items())
                added.append(helper.make_node("DequantizeLinear", [*parts], [stored[name]], stem, axis=1))
            node.input[index] = stored[name]
    nodes = [*added, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
