"""Changes to an ONNX model whose results in ONNX Runtime would be too coarse for a reference.

- MatMulNBits: `accuracy_level` 2 to 4 lets ONNX Runtime round the activations to 16 or 8 bits, for speed,
  where the CPU gains by it: figures would differ from machine to machine. The level becomes 1, floats.
- STFT and DFT are computed in float64. In float32, ONNX Runtime 1.31 is wrong by up to 2e-4 in the logarithm
  of a mel spectrogram, where plain sums in float32 are by 6e-7.
"""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import helper

from kiln.frontend.onnx.attributes import graphs, with_nested_graphs

# Transforms, and the positions of their inputs that are data.
_TRANSFORMS = {"STFT": (0, 2), "DFT": (0,)}
_HAS_CAST_LIKE = 15  # the operator set since which there is a cast to another tensor's type


def exact_content(path: Path, model: onnx.ModelProto) -> bytes | None:
    """The content of `model`, changed; None where nothing has to change. Raises KilnError as `graphs`."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    bodies = [
        *graphs(path, changed),
        *(body for function in changed.functions for body in with_nested_graphs(path, function)),
    ]
    levels = [_without_rounding(node) for body in bodies for node in body.node]
    versions = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    transforms = [_in_float64(body) for body in bodies if max(versions, default=1) >= _HAS_CAST_LIKE]
    return changed.SerializeToString() if any(levels) or any(transforms) else None


def _without_rounding(node: onnx.NodeProto) -> bool:
    """Set the level of a MatMulNBits to 1; returns whether it was another."""
    levels = [
        attribute
        for attribute in node.attribute
        if node.op_type == "MatMulNBits" and attribute.name == "accuracy_level" and attribute.i > 1
    ]
    for attribute in levels:
        attribute.i = 1
    return bool(levels)


def _in_float64(body: onnx.GraphProto | onnx.FunctionProto) -> bool:
    """Cast the data of the transforms in `body` to float64, and their results back; whether there are any."""
    nodes: list[onnx.NodeProto] = []
    for node in body.node:
        positions = _TRANSFORMS.get(node.op_type, ()) if node.domain in ("", "ai.onnx") else ()
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
    if len(nodes) == len(body.node):
        return False
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del body.node[:]
    body.node.extend(copies)
    return True
