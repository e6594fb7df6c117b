"""Changes to an ONNX model whose results in ONNX Runtime would be too coarse for a reference.

- MatMulNBits and QMoE: `accuracy_level` 2 to 4 lets ONNX Runtime round the activations to 16 or 8 bits if
that is faster on this CPU, so results would differ from machine to machine. The level becomes 1: floats.
- STFT and DFT are computed in float64. In float32, ONNX Runtime 1.31 is wrong by up to 2e-4 in the logarithm
  of a mel spectrogram, where plain sums in float32 are by 6e-7.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
from onnx import helper

from kiln.frontend.onnx.attributes import graphs, set_nodes, with_nested_graphs
from kiln.onnx_domains import is_onnx

# Products with packed weights.
_PACKED = ("MatMulNBits", "QMoE")
# Transforms, and the positions of their inputs that are data.
_TRANSFORMS = {"STFT": (0, 2), "DFT": (0,)}


def exact_content(path: Path, model: onnx.ModelProto) -> bytes | None:
    """The content of `model`, changed; None where nothing has to change. Raises KilnError as `graphs`."""
    if not any(
        _rounding(node) or _data_positions(node) for body in _bodies(path, model) for node in body.node
    ):
        return None
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for body in _bodies(path, changed):
        for node in body.node:
            for attribute in _rounding(node):
                attribute.i = 1
        _compute_in_float64(body)
    content: bytes = changed.SerializeToString()
    return content


def _bodies(path: Path, model: onnx.ModelProto) -> list[Any]:
    """The graphs and functions of `model`, inner graphs before those whose nodes hold them."""
    functions = (body for function in model.functions for body in with_nested_graphs(path, function))
    return [*graphs(path, model), *functions][::-1]


def _rounding(node: onnx.NodeProto) -> list[onnx.AttributeProto]:
    """The attribute that lets a matmul with packed weights round its activations; none in other nodes."""
    attributes = node.attribute if node.op_type in _PACKED else ()
    return [attribute for attribute in attributes if attribute.name == "accuracy_level" and attribute.i > 1]


def _data_positions(node: onnx.NodeProto) -> tuple[int, ...]:
    """The positions of the data among the inputs of a transform; none for other operators."""
    return _TRANSFORMS.get(node.op_type, ()) if is_onnx(node) else ()


def _compute_in_float64(body: Any) -> None:
    """Cast the data of the transforms in a graph or a function to float64, and their results back."""
    nodes: list[onnx.NodeProto] = []
    for node in body.node:
        positions = _data_positions(node)
        if not positions:
            nodes.append(node)
            continue
        data, result = node.input[0], node.output[0]
        for position in positions:
            if position < len(node.input) and node.input[position]:
                name = f"{result}/float64_{position}"
                to = onnx.TensorProto.DOUBLE
                nodes.append(helper.make_node("Cast", [node.input[position]], [name], to=to))
                node.input[position] = name
        node.output[0] = f"{result}/float64"
        nodes += [node, helper.make_node("CastLike", [node.output[0], data], [result])]
    if len(nodes) > len(body.node):
        set_nodes(body, nodes)
