"""Types of tensors after operators that ONNX's own inference does not know."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from kiln.command_line.compare.probes import write_probed
from kiln.frontend.onnx.value_types import with_value_types
from onnx import TensorProto, helper

TOP = """
import numpy as np
from kiln.operators import OwnOperator, OwnTensor
from tvm.relax import op

OPERATOR = OwnOperator(
    name="Halves",
    domain="mine",
    attributes={"parts": 2},
    result=lambda x, parts: 2 * (OwnTensor((*x.shape[:-1], x.shape[-1] // parts), "float16"),),
    reference=lambda x, parts: (x, x),
    relax=lambda x, parts: (x, x),
)
"""


def types(model: onnx.ModelProto) -> dict[str, tuple[int, list[int | str]]]:
    """Element type and shape of the inner tensors of a model."""
    return {
        value.name: (
            value.type.tensor_type.elem_type,
            [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim],
        )
        for value in with_value_types(model).graph.value_info
    }


def test_own_and_foreign_operators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator of the user's, then one of ONNX Runtime's, then ONNX's; an unknown one leaves the rest."""
    (tmp_path / "operators").mkdir()
    (tmp_path / "operators/halves.py").write_text(TOP)
    monkeypatch.chdir(tmp_path)
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Halves", ["a"], ["left", "right"], domain="mine"),
        helper.make_node("Cast", ["left"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("FusedMatMul", ["wide", "w"], ["b"], domain="com.microsoft", transB=1),
        helper.make_node("Transpose", ["b"], ["c"], perm=[1, 0]),
        helper.make_node("Frobnicate", ["c"], ["d"], domain="theirs"),
        helper.make_node("Relu", ["d"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, "rows"])
    w = helper.make_tensor("w", TensorProto.FLOAT, [3, 4], [1.0] * 12)
    opsets = [
        helper.make_opsetid(*pair) for pair in (("", 17), ("mine", 1), ("com.microsoft", 1), ("theirs", 1))
    ]
    graph = helper.make_graph(nodes, "net", [x], [y], [w])
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    type_of_name = types(model)
    assert type_of_name["a"] == (TensorProto.FLOAT, ["rows", 8])
    assert (
        type_of_name["left"]
        == type_of_name["right"]
        == (TensorProto.FLOAT16, [type_of_name["left"][1][0], 4])
    )
    assert type_of_name["b"][0] == TensorProto.FLOAT and type_of_name["b"][1][1] == 3
    assert type_of_name["c"][1][0] == 3
    assert "d" not in type_of_name
    onnx.save(model, "net.onnx")
    probes = write_probed(Path("net.onnx"), tmp_path / "probed.onnx")
    assert [probe.tensor for probe in probes] == ["a", "left", "right", "wide", "b", "c", "y"]
