"""Inference of graphs in which an EyeLike has an input of unknown type, which ends ONNX's in SIGSEGV."""

from __future__ import annotations

import signal
import subprocess
import sys

import onnx
import pytest
from kiln.frontend.onnx.inference import infer_shapes
from onnx import TensorProto, parser

_HEADER = '<ir_version: 10, opset_import: ["" : 21, "own" : 1, "local" : 1]>'
GRAPHS = {
    "graph": "g (float[n,1] x) => (y) { z = own.Double(x) y = EyeLike<dtype=7>(z) }",
    "branch": """g (float[n,1] x, bool c) => (y) {
        z = own.Double(x)
        y = If(c) <then_branch = a () => (q) { q = EyeLike<dtype=7>(z) },
                   else_branch = b () => (r) { r = Cast<to=7>(x) }> }""",
    "function": """g (float[n,1] x) => (y) { z = own.Double(x) y = local.f(z) }
        <domain: "local", opset_import: ["" : 21]> f (a) => (b) { b = EyeLike<dtype=7>(a) }""",
}


@pytest.mark.parametrize("name", GRAPHS)
def test_an_eye_like_an_unknown_tensor_has_its_own_type(name: str) -> None:
    model = parser.parse_model(_HEADER + GRAPHS[name])
    before = model.SerializeToString()
    inferred = infer_shapes(model, data_prop=True)
    assert inferred.graph.output[0].type.tensor_type.elem_type == TensorProto.INT64
    assert model.SerializeToString() == before


def test_an_eye_like_a_known_tensor_stays() -> None:
    text = "g (float[n,3] x) => (y) { y = EyeLike<dtype=7, k=1>(x) }"
    inferred = infer_shapes(parser.parse_model(_HEADER + text))
    assert [node.op_type for node in inferred.graph.node] == ["EyeLike"]
    shape = inferred.graph.output[0].type.tensor_type.shape
    assert [size.dim_param or size.dim_value for size in shape.dim] == ["n", 3]


def test_onnx_still_ends_the_process() -> None:
    """Once this fails, kiln.frontend.onnx.inference can go."""
    model = parser.parse_model(_HEADER + GRAPHS["graph"])
    code = (
        "import onnx, sys; onnx.shape_inference.infer_shapes(onnx.load_from_string(sys.stdin.buffer.read()))"
    )
    done = subprocess.run([sys.executable, "-c", code], input=model.SerializeToString(), capture_output=True)
    assert done.returncode == -signal.SIGSEGV, f"ONNX {onnx.__version__}"
