"""Weights of one size at a dynamic axis: refused with the axes, the sizes and what to write."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kiln.frontend.importer import import_model
from kiln.frontend.options import from_config
from kiln.golden.reference_errors import reason
from symbolic import configuration, dynamic, write

from .test_misfits import refused

N = {"n": (2, 16, 2)}
FIXED = "with n = 2: the weights are for one size, give it in 'dims': n: {min: 8, max: 8}"
# The node, the shape of its weight w, and the axes of x and of w that have to agree.
CASES = [
    ("float[2,n] x => MatMul(x, w)", (8, 3), (1, 0)),
    ("float[2,n] x => Gemm(x, w)", (8, 3), (1, 0)),
    ("float[n,2] x => Gemm<transA=1, transB=1>(x, w)", (3, 8), (0, 1)),
    ("float[2,n,9] x => Conv(x, w)", (4, 8, 3), (1, 1)),
    ("float[2,n,9] x => ConvTranspose(x, w)", (8, 4, 3), (1, 0)),
    ("float[2,n] x => LayerNormalization(x, w)", (8,), (1, 0)),
    ("float[2,n,4] x => LayerNormalization<axis=1>(x, w)", (8, 4), (1, 0)),
    ("float[2,n] x => RMSNormalization(x, w)", (8,), (1, 0)),
    ("float[2,n,4] x => GroupNormalization<num_groups=2>(x, w, w)", (8,), (1, 0)),
    ("float[2,n,4] x => InstanceNormalization(x, w, w)", (8,), (1, 0)),
    ("float[2,n,4] x => BatchNormalization(x, w, w, w, w)", (8,), (1, 0)),
    ('float[2,n] x => Einsum<equation="ij,jk->ik">(x, w)', (8, 3), (1, 0)),
    ('float[2,n] x => Einsum<equation="...j,kj->...k">(x, w)', (3, 8), (1, 1)),
    ("float[5,1,n] x => LSTM<hidden_size=3>(x, w, r)", (1, 12, 8), (2, 2)),
    ("float[5,1,n] x => RNN<hidden_size=3>(x, w, r)", (1, 3, 8), (2, 2)),
]


def text_of(node: str) -> str:
    """A graph of this node, whose result is summed up: of a shape that does not depend on the node."""
    inputs, operator = node.split(" => ")
    return f"g ({inputs}) => (float y) {{ t = {operator} y = ReduceSum<keepdims=0>(t) }}"


@pytest.mark.parametrize(("node", "shape", "axes"), CASES)
def test_an_open_size_beside_weights_of_one_size(
    tmp_path: Path, node: str, shape: tuple[int, ...], axes: tuple[int, int]
) -> None:
    weights = {"w": np.ones(shape, np.float32)}
    if "r)" in node:
        weights["r"] = np.ones((1, shape[1], 3), np.float32)
    message = refused(tmp_path, text_of(node), N, opset=23, **weights)
    assert f"axis {axes[0]} of 'x' has size n and axis {axes[1]} of 'w' has size 8, which must be" in message
    assert message.endswith(FIXED)


@pytest.mark.parametrize("node", ["MatMul(x, w)", "Concat<axis=0>(x, w)"])
def test_two_dimensions_of_inputs_that_must_be_one(tmp_path: Path, node: str) -> None:
    sizes = ("n,m", "m2,4") if node.startswith("MatMul") else ("4,m", "4,m2")
    text = text_of(f"float[{sizes[0]}] x, float[{sizes[1]}] w => {node}")
    message = refused(tmp_path, text, {name: (2, 16, 2) for name in ("n", "m", "m2") if name in text})
    assert "if they are the same size in every run, let the inputs have one dimension: 'm' in" in message
    assert message.endswith("place of 'm2', with 'inputs: {INPUT: {shape: [m, …]}}' in the model's YAML")


def test_sizes_that_agree_for_every_size(tmp_path: Path) -> None:
    """Groups before operator set 21, a weight of one element, products of two dynamic sizes."""
    for text, opset in (
        ("float[2,8,n] x, float[2] w => GroupNormalization<num_groups=2>(x, w, w)", 18),
        ("float[2,n] x, float[1] w => LayerNormalization(x, w)", 17),
        ("float[2,n] x, float[n,3] w => MatMul(x, w)", 17),
    ):
        path = write(tmp_path / "m.onnx", text_of(text), opset=opset)
        import_model(path, from_config(configuration(N), dynamic(N)))


@pytest.mark.parametrize(
    ("node", "part"),
    [
        ("float[2,n,4,4] x => DepthToSpace<blocksize=2>(x)", "does not divide its channels of size n"),
        (
            "float[2,n] x => Expand(x, k)",
            "sizes n and 8 do not broadcast for all sizes of the dimensions: an exporter that traces",
        ),
    ],
)
def test_sizes_are_shown_by_the_names_of_dimensions(tmp_path: Path, node: str, part: str) -> None:
    weights = {"k": np.array([2, 8])} if "k)" in node else {}
    message = refused(tmp_path, text_of(node), N, **weights)
    assert "_div" not in message and part in message, message


def test_the_reason_of_the_reference() -> None:
    """Without its source file, line and function, and with the node as elsewhere."""
    code = "[ONNXRuntimeError] : 1 : FAIL : "
    before = f"{code}Non-zero status code returned while running Reshape node. Name:'rs' Status Message: "
    place = "/a/reshape_helper.h:91 onnxruntime::F(const T&, bool) a_size == b_size was false. "
    explanation = "The input tensor cannot be reshaped"
    assert reason(ValueError(before + place + explanation)) == f"Reshape (node rs): {explanation}"
    assert reason(ValueError(before + "Invalid value")) == "Reshape (node rs): Invalid value"
    assert reason(ValueError("[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Got 3")) == "Got 3"
    assert reason(ValueError("something else")) == "something else"
