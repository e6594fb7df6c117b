"""Element types of the nodes of ONNX files that PyTorch's exporter makes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
from kiln.frontend.torch.allowed_types import with_allowed_types
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

INT8, INT16, INT64, BOOL, BFLOAT16 = (
    getattr(TensorProto, name) for name in ("INT8", "INT16", "INT64", "BOOL", "BFLOAT16")
)


def test_nodes_of_types_that_onnx_lacks_compute_in_wider_ones() -> None:
    """Integers wrap around as in the narrow type; the types of inner tensors need not be in the file."""
    inputs = [("b", INT8, [2, 2]), ("s", INT16, [2, 2]), ("t", BOOL, [2, 2]), ("h", BFLOAT16, [2])]
    inner_nodes = [
        helper.make_node("Mul", ["s", "s"], ["inner_square"]),
        helper.make_node("ReduceMax", ["inner_square"], ["largest"], keepdims=0),
    ]
    largest = helper.make_tensor_value_info("largest", INT16, [])
    branch = helper.make_graph(inner_nodes, "branch", [], [largest])
    nodes = [
        helper.make_node("Add", ["b", "b"], ["untold"]),
        helper.make_node("MatMul", ["untold", "b"], ["product"]),
        helper.make_node("Constant", [], ["axes"], value=onnx.numpy_helper.from_array(np.int64([1]))),
        helper.make_node("ReduceMax", ["t", "axes"], ["any"], keepdims=0),
        helper.make_node("Sin", ["h"], ["sine"]),
        helper.make_node("Constant", [], ["yes"], value=onnx.numpy_helper.from_array(np.array(True))),
        helper.make_node("If", ["yes"], ["chosen"], then_branch=branch, else_branch=branch),
        helper.make_node("ReduceSum", ["chosen"], ["sum"], keepdims=0),
        helper.make_node("Abs", ["s"], ["sizes"]),
    ]
    outputs = [("product", INT8, [2, 2]), ("any", BOOL, [2]), ("sine", BFLOAT16, [2])]
    outputs += [("sum", INT16, []), ("sizes", INT16, [2, 2])]
    of = [[helper.make_tensor_value_info(*value) for value in values] for values in (inputs, outputs)]
    model = helper.make_model(helper.make_graph(nodes, "g", *of), opset_imports=[helper.make_opsetid("", 18)])
    with_allowed_types(model)
    onnx.checker.check_model(model, full_check=True)
    assert len(model.graph.node) == len(nodes) + 9, "the node of an allowed type is left as it is"
    values = {
        "b": np.int8([[100, 2], [3, -4]]),
        "s": np.int16([[3, -1000], [7, 5]]),
        "t": np.array([[True, False], [False, False]]),
        "h": np.array([0.5, 2.0], ml_dtypes.bfloat16),
    }
    product, some, sine, total, sizes = ReferenceEvaluator(model).run(None, values)
    twice = values["b"] + values["b"]
    assert product.tolist() == (twice.astype("int32") @ values["b"]).astype("int8").tolist()
    assert some.tolist() == [True, False]
    assert np.array_equal(sine.astype("f4"), np.sin([0.5, 2.0]).astype(ml_dtypes.bfloat16).astype("f4"))
    assert total == 16960, "the square of -1000, as 16 bits hold it"
    assert sizes.tolist() == [[3, 1000], [7, 5]]
