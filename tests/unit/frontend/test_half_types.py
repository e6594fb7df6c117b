"""Graphs of 16-bit floats are computed in float32, with the inputs, outputs and values of the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from kiln.frontend.importer import import_model
from kiln.frontend.onnx.half_types import compute_in_float32, half_types
from kiln.frontend.options import ImportOptions
from kiln.golden.compare import ErrorLimits, entry_limits
from onnx import TensorProto, helper, numpy_helper

HALF = TensorProto.FLOAT16


def half(values: list[float]) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, "float16"))


def graph() -> onnx.ModelProto:
    """float16 weights (one is an input too), constants, casts, and branches that read tensors around them."""
    branches = {
        name: helper.make_graph(
            [
                helper.make_node("Constant", [], [f"{name}_c"], value=half([factor])),
                helper.make_node("Mul", ["h", f"{name}_c"], [f"{name}_y"]),
            ],
            name, [], [helper.make_tensor_value_info(f"{name}_y", HALF, [2, 3])],
        )
        for name, factor in (("then", 2), ("else", 3))
    }  # fmt: skip
    nodes = [
        helper.make_node("Cast", ["n"], ["n16"], to=HALF),
        helper.make_node("Add", ["x", "n16"], ["s"]),
        helper.make_node("MatMul", ["s", "w"], ["h"]),
        helper.make_node("If", ["flag"], ["y"], then_branch=branches["then"], else_branch=branches["else"]),
        helper.make_node("Relu", ["y"], ["z"]),
        helper.make_node("Cast", ["y"], ["wide"], to=TensorProto.FLOAT),
    ]
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.uniform(-1, 1, (4, 3)).astype("f2"), "w")]
    weights.append(numpy_helper.from_array(np.array([True]), "flag"))
    inputs = [("x", HALF, [2, 4]), ("n", TensorProto.INT32, [2, 4]), ("w", HALF, [4, 3])]
    outputs = [("y", HALF, [2, 3]), ("z", HALF, [2, 3]), ("wide", TensorProto.FLOAT, [2, 3])]
    made = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(*port) for port in inputs],
        [helper.make_tensor_value_info(*port) for port in outputs], weights,
        value_info=[helper.make_tensor_value_info("h", HALF, [2, 3])],
    )  # fmt: skip
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def run(model: onnx.ModelProto) -> list[Any]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)
    feeds = {"x": rng.uniform(-1, 1, (2, 4)).astype("f2"), "n": rng.integers(0, 3, (2, 4)).astype("i4")}
    return list(session.run(None, feeds))


def test_the_values_stay_within_rounding() -> None:
    model = graph()
    want = run(model)
    assert half_types(model) == ["fp16"]
    compute_in_float32(model)
    onnx.checker.check_model(model, full_check=True)
    got = run(model)
    assert [str(value.dtype) for value in got] == ["float16", "float16", "float32"]
    for have, expected in zip(got, want, strict=True):
        np.testing.assert_allclose(have, expected, atol=1e-2)
    inner = [node for node in model.graph.node if node.op_type != "Cast"]
    types = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    kinds = {value.name: value.type.tensor_type.elem_type for value in types.value_info}
    assert {kinds.get(name, TensorProto.FLOAT) for node in inner for name in node.output} == {
        TensorProto.FLOAT
    }


def test_casts_to_other_types_round_as_in_the_file() -> None:
    """Sums that 11 bits cannot hold, as float64, integers and float32, also in a branch and after a cast."""
    types = {"double": TensorProto.DOUBLE, "whole": TensorProto.INT32, "single": TensorProto.FLOAT}
    inner = [helper.make_node("Cast", ["sum"], ["inner_double"], to=TensorProto.DOUBLE)]
    port = helper.make_tensor_value_info("inner_double", TensorProto.DOUBLE, [4])
    branch = helper.make_graph(inner, "branch", [], [port])
    nodes = [
        helper.make_node("Add", ["x", "x"], ["twice"]),
        helper.make_node("Add", ["twice", "one"], ["sum"]),
        helper.make_node("Cast", ["sum"], ["double"], to=TensorProto.DOUBLE),
        helper.make_node("CastLike", ["sum", "n"], ["whole"]),
        helper.make_node("Cast", ["d"], ["narrow"], to=HALF),
        helper.make_node("Cast", ["narrow"], ["single"], to=TensorProto.FLOAT),
        helper.make_node("If", ["flag"], ["either"], then_branch=branch, else_branch=branch),
    ]
    inputs = {"x": HALF, "n": TensorProto.INT32, "d": TensorProto.DOUBLE, "flag": TensorProto.BOOL}
    sizes: dict[str, list[int]] = {"x": [4], "n": [4], "d": [4], "flag": []}
    outputs = {**types, "either": TensorProto.DOUBLE}
    made = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info(name, kind, sizes[name]) for name, kind in inputs.items()],
        [helper.make_tensor_value_info(name, kind, [4]) for name, kind in outputs.items()],
        [numpy_helper.from_array(np.array([1], "float16"), "one")],
    )  # fmt: skip
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    feeds = {
        "x": np.array([1024.0, 1025, 1027, -1025], "float16"), "n": np.zeros(4, "int32"),
        "d": np.array([1 + 2.0**-11, 1.001, -3e-8, 1e6]), "flag": np.array(True),
    }  # fmt: skip

    def results() -> list[Any]:
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        return list(session.run(None, feeds))

    compute_in_float32(model)
    onnx.checker.check_model(model, full_check=True)
    sums = feeds["x"] + feeds["x"] + np.float16(1)
    with np.errstate(over="ignore"):
        wanted = [sums, sums.astype("int32"), feeds["d"].astype("float16"), sums]
    for have, expected in zip(results(), wanted, strict=True):
        np.testing.assert_array_equal(have, expected)


def test_other_graphs_stay_as_they_are() -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    model = helper.make_model(helper.make_graph([node], "g", ports[:1], ports[1:]))
    before = model.SerializeToString()
    compute_in_float32(model)
    assert model.SerializeToString() == before


def test_the_import_computes_in_float32(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    model = graph()
    onnx.save(model, path)
    module, interface = import_model(path, ImportOptions("net"))
    assert [port.dtype for port in interface.inputs] == ["float16", "int32"]
    assert [port.dtype for port in interface.outputs] == ["float16", "float16", "float32"]
    lines = [line for line in module.script().splitlines() if "R.Tensor" in line and "def main" not in line]
    assert any("R.matmul" in line for line in lines)
    assert not [
        line for line in lines if "float16" in line and "R.Tuple" not in line and "astype" not in line
    ]


@pytest.mark.parametrize(
    ("tolerance", "precision", "limits"),
    [
        ({}, None, ErrorLimits()),
        ({}, "fp16", ErrorLimits(1e-3, 1e-2, 1)),
        (
            {"relative": 0.5, "fp16": {"absolute": 0.1}},
            "fp16",
            ErrorLimits(0.1, 0.5),
        ),
        (
            {"outputs": {"y": {"absolute": 0.5}}},
            "bf16",
            ErrorLimits(0.5, 8e-2, 1),
        ),
    ],
)
def test_limits_are_those_of_16_bits_where_the_reference_computes_so(
    tolerance: dict[str, Any], precision: str | None, limits: ErrorLimits
) -> None:
    assert entry_limits(tolerance, "y", precision) == limits
