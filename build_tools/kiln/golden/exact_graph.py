"""Changes to an ONNX model that ONNX Runtime cannot run, or runs too coarsely for a reference.

- MatMulNBits and QMoE: `accuracy_level` 2 to 4 lets ONNX Runtime round the activations to 16 or 8 bits if
that is faster on this CPU, so results would differ from machine to machine. The level becomes 1: floats.
- STFT and DFT are computed in float64. In float32, ONNX Runtime 1.31 is wrong by up to 2e-4 in the logarithm
  of a mel spectrogram, where plain sums in float32 are by 6e-7.
- LSTM, GRU and RNN of another type are computed in float32, the only one that ONNX Runtime has for them.
  ONNX's own evaluator has others, and ignores their attributes `clip` and `activations`.
"""

from __future__ import annotations

from collections.abc import Mapping
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
# Layers of ONNX, and the positions of all their inputs but the lengths, which are integers.
_LAYERS = dict.fromkeys(("LSTM", "GRU", "RNN"), (0, 1, 2, 3, 5, 6, 7))
_DOUBLE, _FLOAT = onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT


def exact_content(path: Path, model: onnx.ModelProto) -> bytes | None:
    """The content of `model`, changed; None where nothing has to change. Raises KilnError as `graphs`."""
    types = _types_of_weights(path, model)
    if not any(
        _rounding(node) or _computed(node, types) for body in _bodies(path, model) for node in body.node
    ):
        return None
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for body in _bodies(path, changed):
        for node in body.node:
            for attribute in _rounding(node):
                attribute.i = 1
        _compute_in_other_types(body, types)
    content: bytes = changed.SerializeToString()
    return content


def _bodies(path: Path, model: onnx.ModelProto) -> list[Any]:
    """The graphs and functions of `model`, inner graphs before those whose nodes hold them."""
    functions = (body for function in model.functions for body in with_nested_graphs(path, function))
    return [*graphs(path, model), *functions][::-1]


def _types_of_weights(path: Path, model: onnx.ModelProto) -> dict[str, int]:
    """The element types of the inputs and initializers of all graphs of `model`, by name."""
    types: dict[str, int] = {}
    for graph in graphs(path, model):
        types |= {value.name: value.type.tensor_type.elem_type for value in graph.input}
        types |= {item.name: item.data_type for item in graph.initializer}
    return types


def _rounding(node: onnx.NodeProto) -> list[onnx.AttributeProto]:
    """The attribute that lets a matmul with packed weights round its activations; none in other nodes."""
    attributes = node.attribute if node.op_type in _PACKED else ()
    return [attribute for attribute in attributes if attribute.name == "accuracy_level" and attribute.i > 1]


def _computed(
    node: onnx.NodeProto, types: Mapping[str, int]
) -> tuple[int, tuple[int, ...], int | None] | None:
    """The type in which to compute a node, the positions of its data, and the type of its results.

    The type of the results is None where it is that of the first input. None for other nodes.
    """
    if not is_onnx(node):
        return None
    if node.op_type in _TRANSFORMS:
        return _DOUBLE, _TRANSFORMS[node.op_type], None
    weights = types.get(node.input[1], _FLOAT) if node.op_type in _LAYERS else _FLOAT
    return None if weights == _FLOAT else (_FLOAT, _LAYERS[node.op_type], weights)


def _compute_in_other_types(body: Any, types: Mapping[str, int]) -> None:
    """Cast the data of nodes of a graph or a function to the type of `_computed`, and their results back."""
    nodes: list[onnx.NodeProto] = []
    for node in body.node:
        how = _computed(node, types)
        if how is None:
            nodes.append(node)
            continue
        to, positions, result_type = how
        data, results = node.input[0], list(node.output)
        prefix = next(filter(None, results))
        for position in positions:
            if position < len(node.input) and node.input[position]:
                name = f"{prefix}/cast_{position}"
                nodes.append(helper.make_node("Cast", [node.input[position]], [name], to=to))
                node.input[position] = name
        nodes.append(node)
        for index, result in enumerate(results):
            if result:
                computed = node.output[index] = f"{result}/computed"
                nodes.append(
                    helper.make_node("CastLike", [computed, data], [result])
                    if result_type is None
                    else helper.make_node("Cast", [computed], [result], to=result_type)
                )
    if len(nodes) > len(body.node):
        set_nodes(body, nodes)
