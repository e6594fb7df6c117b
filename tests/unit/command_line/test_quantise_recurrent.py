"""Weights of recurrent layers in int8, which onnxruntime.quantization leaves in float."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from kiln.command_line.quantise.run import Goal, quantise
from onnx import TensorProto, helper, numpy_helper

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
HIDDEN, BOTH = 8, "bidirectional"


def tagger(path: Path, kind: str) -> Path:
    """A recurrent layer of both directions over 5 steps, and a product of its result."""
    generator = np.random.default_rng(4)
    arrays = {
        "w": generator.normal(size=(2, GATES[kind] * HIDDEN, 6)),
        "r": generator.normal(size=(2, GATES[kind] * HIDDEN, HIDDEN)) / 4,
        "m": generator.normal(size=(HIDDEN, 3)),
    }
    arrays["w"][:, 0] = 0  # a row without any weight has no scale
    nodes = [
        helper.make_node(
            kind, ["x", "w", "r"], ["h"], "layer", hidden_size=HIDDEN, direction="bidirectional"
        ),
        helper.make_node("MatMul", ["h", "m"], ["y"], "product"),
    ]
    value, floats = helper.make_tensor_value_info, TensorProto.FLOAT
    graph = helper.make_graph(
        nodes, "net", [value("x", floats, [5, 1, 6])], [value("y", floats, [5, 2, 1, 3])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(path))
    return path


@pytest.mark.parametrize("kind", list(GATES))
def test_weights_of_both_operands_are_int8(tmp_path: Path, kind: str) -> None:
    net, data, out = tagger(tmp_path / "net.onnx", kind), tmp_path / "data.npz", tmp_path / "out.onnx"
    np.savez(data, x=np.random.default_rng(5).normal(size=(20, 5, 1, 6)).astype(np.float32))
    result = quantise(str(net), data, out)
    assert (result.choices, result.kept) == (2, ()) and result.figures.snr > 25
    model = onnx.load(str(out))
    onnx.checker.check_model(model)
    [layer] = [node for node in model.graph.node if node.op_type == kind]
    makers = {node.output[0]: node for node in model.graph.node}
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    for operand, depth in ((1, 6), (2, HIDDEN)):
        source = makers[layer.input[operand]]
        levels = stored[source.input[0]]
        assert (source.op_type, levels.data_type) == ("DequantizeLinear", TensorProto.INT8)
        assert list(levels.dims) == [2, GATES[kind] * HIDDEN, depth]
    assert not {"w", "r"} & set(stored)  # nothing is stored twice


def test_a_recurrent_layer_may_stay_in_float(tmp_path: Path) -> None:
    net, data, out = tagger(tmp_path / "net.onnx", "LSTM"), tmp_path / "data.npz", tmp_path / "out.onnx"
    np.savez(data, x=np.random.default_rng(5).normal(size=(4, 5, 1, 6)).astype(np.float32))
    whole = quantise(str(net), data, out)
    mixed = quantise(str(net), data, out, goal=Goal(min_snr=whole.figures.snr + 1))
    assert [name for name, _ in mixed.layers] == [*mixed.kept, *({"layer", "product"} - set(mixed.kept))]
    kinds = {node.op_type for node in onnx.load(str(out)).graph.node}
    assert "DequantizeLinear" in kinds and len(mixed.kept) == 1
