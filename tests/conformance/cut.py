"""Cuts a model file before its last softmax, to compare values that the softmax would hide.

The cut file is a model like any other: it can be imported, built, and run on the reference.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import tflite


def before_softmax(source: Path, out: Path) -> Path:
    """Write to `out` the model `source` (.onnx, .tflite) with its last softmax's input as its only output."""
    out.write_bytes(_cut_tflite(source) if source.suffix == ".tflite" else _cut_onnx(source))
    return out


def _cut_onnx(source: Path) -> bytes:
    model = onnx.shape_inference.infer_shapes(onnx.load(source))
    name = [node for node in model.graph.node if node.op_type == "Softmax"][-1].input[0]
    value = next(value for value in model.graph.value_info if value.name == name)
    del model.graph.output[:]
    model.graph.output.append(value)
    content: bytes = model.SerializeToString()
    return content


def _cut_tflite(source: Path) -> bytes:
    """Overwrite the one number that names the graph's output; the softmax stays in the file, unused."""
    content = bytearray(source.read_bytes())
    graph = tflite.Model.GetRootAsModel(content, 0).Subgraphs(0)
    operators = [graph.Operators(index) for index in range(graph.OperatorsLength())]
    model = tflite.Model.GetRootAsModel(content, 0)
    kinds = [model.OperatorCodes(operator.OpcodeIndex()) for operator in operators]
    codes = [max(kind.BuiltinCode(), kind.DeprecatedBuiltinCode()) for kind in kinds]
    last = max(index for index, code in enumerate(codes) if code == tflite.BuiltinOperator.SOFTMAX)
    assert graph.OutputsLength() == 1
    # Field 2 of the SubGraph table (vtable slot 8) is `outputs`, a vector of int32.
    vector_offset = graph._tab.Vector(graph._tab.Offset(8))
    content[vector_offset : vector_offset + 4] = int(operators[last].Inputs(0)).to_bytes(4, "little")
    return bytes(content)
