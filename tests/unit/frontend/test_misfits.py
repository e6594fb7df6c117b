"""Inputs that do not fit: one line with the node, the operator, the tensors, the axis and both sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from kiln.errors import KilnError
from kiln.frontend.importer import import_model
from kiln.frontend.onnx.misfits import reason
from kiln.frontend.options import ImportOptions, from_config
from onnx import helper
from relaxed import run_by_tvm
from symbolic import configuration, dynamic, write

# What only TVM, Python or ONNX would say.
FOREIGN = re.compile(r"T\.int64|R\.(Tensor|shape)|Check failed|lv\d|list index|unpack|typestr|unification")


def refused(
    path: Path, text: str, dims: Mapping[str, tuple[int, ...]], opset: int = 22, **weights: Any
) -> str:
    write(path / "m.onnx", text, opset=opset, **weights)
    options = from_config(configuration(dims), dynamic(dims)) if dims else ImportOptions("m")
    with pytest.raises(KilnError) as raised:
        import_model(path / "m.onnx", options)
    message = str(raised.value).replace(str(path), "")
    assert "\n" not in message and not FOREIGN.search(message), message
    return message


# Calls with inputs that do not fit together, and parts of the error.
MISFITS: list[tuple[str, list[str]]] = [
    (
        "float[2,3] a, float[4,5] b => MatMul(a, b)",
        ["axis 1 of 'a' has size 3 and axis 0 of 'b' has size 4"],
    ),
    (
        "float[2,4,3] a, float[3,3,4] b => MatMul(a, b)",
        ["axis 0 of 'a' has size 2 and axis 0 of 'b' has size 3"],
    ),
    ("float a, float[3] b => MatMul(a, b)", ["'a' has no axes"]),
    ("float[2,3] a, float[2,4] b => Add(a, b)", ["axis 1 of 'a' has size 3", "'b' has size 4", "or 1"]),
    (
        "float[2,3] a, float[3,1,4] b => Sub(a, b)",
        ["axis 1 of 'a' has size 3 and axis 2 of 'b' has size 4"],
    ),
    (
        "float[2,3] a, float[2,3] b => Gemm(a, b)",
        ["axis 1 of 'a' has size 3 and axis 0 of 'b' has size 2"],
    ),
    (
        "float[2,3] a, float[2,3] b, float[4] c => Gemm<transB=1>(a, b, c)",
        ["axis 0 of 'c' has size 4", "1 or 2"],
    ),
    (
        "float[2,3] a, float[4,4] b => Concat<axis=1>(a, b)",
        ["axis 0 of 'a' has size 2 and axis 0 of 'b' has size 4"],
    ),
    ("float[2,3] a, float[3] b => Concat<axis=0>(a, b)", ["'a' has 2 axes and 'b' has 1"]),
    (
        "float[1,4,8,8] a, float[6,3,3,3] b => Conv(a, b)",
        ["axis 1 of 'a' has size 4, allowed: 3, by axis 1 of 'b'"],
    ),
    (
        "float[1,4,8] a, float[6,3,3] b => ConvTranspose(a, b)",
        ["axis 1 of 'a' has size 4, allowed: 6, by axis 0"],
    ),
    (
        "float[2,3] a, double[2,3] b => Mul(a, b)",
        ["'a' and 'b' are float32 and float64", "insert a Cast"],
    ),
    ("bool[2,3] a => Exp(a)", ["'a' is bool, allowed: bfloat16, float16, float32, float64"]),
    (
        "float[2,3] a, float[2] b, float[3] c => LayerNormalization(a, b, c)",
        ["'a' float32[2, 3], 'b' float32[2]"],
    ),
    ("float[2,3] a, float[3] b => LayerNormalization<axis=4>(a, b)", ["'axis' is 4, allowed: -2..1"]),
    (
        "float[2,3] a, int64[2,3] b, float[2,4] c => ScatterElements(a, b, c)",
        ["'b' int64[2, 3], 'c' float32[2, 4]"],
    ),
    (
        "float[2,3,4] a, float[3,4,5] b => Einsum<equation='abc,abd->acd'>(a, b)".replace("'", '"'),
        ["axes of label 'a' have sizes 2 and 3, allowed: one size", "Expand the shorter operand"],
    ),
    (
        "float[1,2,3,8] a, float[1,2,4,9] b, float[1,2,4,8] c => Attention(a, b, c)",
        ["size 8", "size 9", "'b' float32"],
    ),
    (
        "float[1,2,3,8] a, float[1,2,4,8] b, double[1,2,4,8] c => Attention(a, b, c)",
        ["its inputs Q and V are float32 and float64", "insert a Cast"],
    ),
    (
        "float[1,2,4,4,4,4] a => MaxPool<kernel_shape=[2,2,2,2]>(a)",
        ["6 axes, allowed: 3 to 5", "a Reshape"],
    ),
    (
        "float[1,2,4,4,4,4] a, float[3,2,2,2,2,2] b => Conv(a, b)",
        ["'a' has 6 axes, allowed: 3 to 5; sum convolutions over three axes"],
    ),
    (
        "float[1,2,4,4,4,4] a, float[1,2,2,2,2,4] b => GridSample(a, b)",
        ["'a' has 6 axes, allowed: 4 and 5; an operator of your own"],
    ),
    (
        "float[1,2,3,8] a, float[1,2,4,8] b, float[1,4,8] c => Attention(a, b, c)",
        ["'c' float32[1, 4, 8]"],
    ),
]


@pytest.mark.parametrize(("text", "parts"), MISFITS)
def test_fixed_sizes(text: str, parts: list[str], tmp_path: Path) -> None:
    given, call = text.split(" => ")
    opset = "23" if "Attention" in text else "22"
    graph = f"g ({given}) => (float y) {{ y = {call} }}"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]>\n{graph}')
    model.graph.node[0].name = "the_node"
    model.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(KilnError) as raised:
        import_model(tmp_path / "m.onnx", ImportOptions("m"))
    message = str(raised.value)
    operator = call.split("(")[0].split("<")[0]
    for part in [f"{operator} (node the_node)", *parts]:
        assert part in message, message
    assert "\n" not in message and not FOREIGN.search(message), message


def test_dynamic_sizes_are_named(tmp_path: Path) -> None:
    text = "g (float[n,3] a, float[n,4] b) => (float[n,5] y) { t = MatMul(a, w) y = Add(t, b) }"
    message = refused(tmp_path, text, {"n": (1, 9)}, w=np.ones((5, 2), "f4"))
    assert "MatMul" in message and "axis 1 of 'a' has size 3 and axis 0 of 'w' has size 5" in message


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes", "what"),
    [
        ("Add", ["a"], {}, "Add (node n) has 1 inputs, allowed in operator set 17: 2"),
        ("Relu", ["a", "a"], {}, "Relu (node n) has 2 inputs, allowed in operator set 17: 1"),
        ("Concat", ["a"], {}, "Concat (node n) has no attribute 'axis', which it must have"),
    ],
)
def test_counts_of_inputs_and_missing_attributes(
    operator: str, inputs: list[str], attributes: dict[str, Any], what: str, tmp_path: Path
) -> None:
    node = helper.make_node(operator, inputs, ["y"], "n", **attributes)
    value = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "ay"]
    graph = helper.make_graph([node], "g", value[:1], value[1:])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        tmp_path / "m.onnx",
    )
    with pytest.raises(KilnError) as raised:
        import_model(tmp_path / "m.onnx", ImportOptions("m"))
    assert what in str(raised.value)


def test_a_split_has_as_many_outputs_as_it_says(tmp_path: Path) -> None:
    """ONNX's shape inference ends the process."""
    text = "g (float[6] x) => (float[2] a, float[2] b, float[2] c) { a, b, c = Split<num_outputs = 2>(x) }"
    assert "attribute 'num_outputs' is 2, allowed: 3, its outputs" in refused(tmp_path, text, {})


def test_axes_that_onnx_compares(tmp_path: Path) -> None:
    text = "g (float[2,4] x, float[2,3,4] g) => (float[2,4] y) { y = GridSample(x, g) }"
    text = text.replace("[2,4] x", "[2,1,4,4] x").replace("[2,3,4] g", "[3,4,4,2] g")
    message = refused(tmp_path, text, {})
    assert "two axes that must be alike have the sizes" in message and "'g' float32[3, 4, 4, 2]" in message


def test_old_operator_sets_broadcast_otherwise(tmp_path: Path) -> None:
    """In operator set 6, PRelu has a slope for each channel."""
    text = "g (float[2,3,3] x) => (float[2,3,3] y) { y = PRelu(x, s) }"
    slopes = np.float32([0.5, 2, 4])
    path = write(tmp_path / "m.onnx", text, opset=6, s=slopes)
    module, _ = import_model(path, ImportOptions("m"))
    x = np.arange(-9, 9, dtype="f4").reshape(2, 3, 3)
    assert np.array_equal(run_by_tvm(module, [x])[0], np.where(x < 0, x * slopes.reshape(3, 1), x))


def test_messages_of_libraries_are_explained() -> None:
    node = helper.make_node("Foo", ["a", "b"], ["y"], "n", perm=[1, 0])
    types = {"a": ("float32", [2, 3]), "b": ("float32", [4])}
    broadcast = (
        "In add, the first input shape at dim 0 is T.int64(5) and the second input shape at dim 1 is "
        "T.int64(3), which are not broadcastable."
    )
    axes = "However, the tensor ndim is 2 while the given number of axes is 3"
    for text, part in (
        (broadcast, "sizes 5 (axis 0) and 3 (axis 1) do not broadcast"),
        (axes, "a tensor has 2 axes, allowed: 3"),
        (
            "ParseData type mismatch for tensor: b. Expected:int64 Actual:int32",
            "'b' is int32, allowed: int64",
        ),
        ("anything else", "do not fit together"),
    ):
        explanation = reason(RuntimeError(text), node, types, 22)
        assert part in explanation and "'a' float32[2, 3], 'b' float32[4], perm = [1, 0]" in explanation


def test_a_long_attribute_is_not_shown_whole() -> None:
    node = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], nodes_nodeids=list(range(5000)))
    text = reason(IndexError("list index out of range"), node, {}, 22)
    assert "nodes_nodeids = [0, 1, 2," in text and "15, … 5000 in all]" in text
    assert len(text) < 500
