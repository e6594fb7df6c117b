"""Products of uint8 by int8 in ONNX Runtime, the reference: sums are exact on CPUs without VNNI too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from kiln.frontend.onnx.exact_sums import make_exact, may_saturate
from kiln.frontend.onnx.plain_session import plain_session
from onnx import TensorProto, helper, numpy_helper

ROWS, TERMS, COLUMNS = 3, 16, 5
DATA = np.full((ROWS, TERMS), 255, np.uint8)
WEIGHTS = np.full((TERMS, COLUMNS), 127, np.int8)
SUM = TERMS * 255 * 127  # of each result; in pairs of 16 bits it saturates at 8 · 32767


def product(
    inputs: dict[str, np.ndarray], stored: dict[str, np.ndarray], nodes: list[onnx.NodeProto]
) -> bytes:
    """A model with result `y` in int32; `inputs` and `stored`: tensors by name, of which only types count."""
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in inputs.items()
    ]
    result = helper.make_tensor_value_info("y", TensorProto.INT32, None)
    constants = [numpy_helper.from_array(value, name) for name, value in stored.items()]
    graph = helper.make_graph(nodes, "product", values, [result], constants)
    content: bytes = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]).SerializeToString()
    return content


@pytest.mark.parametrize("point", [False, True])
@pytest.mark.parametrize("held", [False, True])
def test_sums_of_extreme_values(held: bool, point: bool) -> None:
    """Weights that are stored, and weights that are an input; with zero points, and without."""
    values = {"a": DATA, "b": WEIGHTS}
    points = {"pa": np.array(1, np.uint8), "pb": np.array(-1, np.int8)} if point else {}
    inputs = {"a": DATA} if held else values
    node = helper.make_node("MatMulInteger", ["a", "b", *points], ["y"])
    content = product(inputs, {**({"b": WEIGHTS} if held else {}), **points}, [node])
    (got,) = plain_session(content).run(None, {name: values[name] for name in inputs})
    assert (got == (TERMS * 254 * 128 if point else SUM)).all()


@pytest.mark.parametrize("point", [False, True])
def test_convolutions_of_signed_data(point: bool) -> None:
    """Their weights are the first operand of ONNX Runtime's products."""
    data, weights = np.full((1, TERMS, 4), 127, np.int8), np.full((2, TERMS, 3), 255, np.uint8)
    points = {"pa": np.array(-1, np.int8), "pb": np.array(1, np.uint8)} if point else {}
    node = helper.make_node("ConvInteger", ["a", "b", *points], ["y"], pads=[1, 0])
    content = product({"a": data}, {"b": weights, **points}, [node])
    (got,) = plain_session(content).run(None, {"a": data})
    term = 128 * 254 if point else SUM // TERMS
    assert (got == TERMS * term * np.array([2, 3, 3])).all()


def test_data_whose_type_is_inferred() -> None:
    moved = helper.make_node("Transpose", ["a"], ["moved"], perm=[1, 0])
    node = helper.make_node("MatMulInteger", ["moved", "b"], ["y"])
    (got,) = plain_session(product({"a": DATA.T}, {"b": WEIGHTS}, [moved, node])).run(None, {"a": DATA.T})
    assert (got == SUM).all()


def test_a_graph_inside_a_node() -> None:
    """The weights are those of the graph outside."""
    branches = [
        helper.make_graph(
            [helper.make_node("MatMulInteger", ["a", "b"], [name])],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.INT32, None)],
        )
        for name in ("then", "else")
    ]
    outer = helper.make_node("MatMulInteger", ["a", "b"], ["y"])
    both = helper.make_node("If", ["which"], ["z"], then_branch=branches[0], else_branch=branches[1])
    added = helper.make_node("Add", ["unused", "z"], ["y"])
    outer.output[0] = "unused"
    inputs = {"a": DATA, "which": np.array(True)}
    (got,) = plain_session(product(inputs, {"b": WEIGHTS}, [outer, both, added])).run(None, inputs)
    assert (got == 2 * SUM).all()


def test_what_needs_no_change_is_not_changed(tmp_path: Path) -> None:
    """Signed data, and a model without such an operator, which is not even parsed."""
    node = helper.make_node("MatMulInteger", ["a", "b"], ["y"])
    signed = product({"a": DATA.astype(np.int8)}, {"b": WEIGHTS}, [node])
    assert may_saturate(signed) and not make_exact(onnx.ModelProto.FromString(signed))
    plain = product({"a": DATA}, {}, [helper.make_node("Cast", ["a"], ["y"], to=TensorProto.INT32)])
    (tmp_path / "plain.onnx").write_bytes(plain)
    assert not may_saturate(plain) and not may_saturate(str(tmp_path / "plain.onnx"))


def test_weights_are_not_kept_twice(tmp_path: Path) -> None:
    """ONNX Runtime would warn of an initialiser that no node reads. An empty file has no operators."""
    node = helper.make_node("MatMulInteger", ["a", "b"], ["y"])
    model = onnx.ModelProto.FromString(product({"a": DATA}, {"b": WEIGHTS}, [node]))
    assert make_exact(model)
    (weights, point) = model.graph.initializer
    assert numpy_helper.to_array(weights).max() == 255 and numpy_helper.to_array(point) == 128
    (tmp_path / "empty.onnx").touch()
    assert not may_saturate(str(tmp_path / "empty.onnx"))


@pytest.mark.parametrize("columns", [(), (COLUMNS,)], ids=["one scale", "scales of columns"])
@pytest.mark.parametrize("operator", ["QLinearMatMul", "QGemm", "QLinearConv"])
def test_products_that_are_scaled(operator: str, columns: tuple[int, ...]) -> None:
    """ONNX Runtime takes the weights as uint8; QLinearConv has them as (channels, terms, 1)."""
    is_conv, is_gemm = operator == "QLinearConv", operator == "QGemm"
    data, weights = (DATA.T[None], WEIGHTS.T[..., None]) if is_conv else (DATA, WEIGHTS)
    scale = np.full(columns, 1, np.float32)
    stored = {
        "sa": np.float32(1), "pa": np.uint8(0), "b": weights, "sb": scale, "pb": np.zeros(columns, np.int8),
        "sy": np.float32(SUM / 200), "py": np.uint8(50),
    }  # fmt: skip
    inputs = ["a", "sa", "pa", "b", "sb", "pb", *([""] if is_gemm else []), "sy", "py"]
    node = helper.make_node(operator, inputs, ["y"], domain="com.microsoft" if is_gemm else "")
    model = onnx.ModelProto.FromString(
        product({"a": data}, {name: np.asarray(value) for name, value in stored.items()}, [node])
    )
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.UINT8
    (got,) = plain_session(model.SerializeToString()).run(None, {"a": data})
    assert (got == 250).all()
