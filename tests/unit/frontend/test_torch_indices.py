"""Indices of the ONNX files that PyTorch's exporter makes of archives."""

from __future__ import annotations

import numpy as np
import onnx
from kiln.frontend.torch.export_stage import widen_indices
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

FLOAT, INT32, INT64 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64


def test_indices_of_any_or_of_no_type_are_int64() -> None:
    """ONNX allows int64 alone, and the exporter writes no type for some results of dynamic sizes."""
    inputs = [
        helper.make_tensor_value_info("x", FLOAT, [4]),
        helper.make_tensor_value_info("wide", INT64, [2, 1]),
        helper.make_tensor_value_info("narrow", INT32, [2, 1]),
    ]
    nodes = [
        helper.make_node("Add", ["narrow", "narrow"], ["untold"]),
        helper.make_node("GatherND", ["x", "wide"], ["a"]),
        helper.make_node("GatherND", ["x", "narrow"], ["b"]),
        helper.make_node("ScatterND", ["x", "untold", "a"], ["c"]),
    ]
    outputs = [helper.make_tensor_value_info(name, FLOAT, [size]) for name, size in (("b", 2), ("c", 4))]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    widen_indices(graph)
    assert [node.op_type for node in graph.node].count("Cast") == 2
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    onnx.checker.check_model(model, full_check=True)
    values = {"x": np.arange(4, dtype="f4"), "wide": np.int64([[1], [2]]), "narrow": np.int32([[1], [0]])}
    b, c = ReferenceEvaluator(model).run(None, values)
    assert b.tolist() == [1, 0]
    assert c.tolist() == [2, 1, 1, 3]
