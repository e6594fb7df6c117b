"""Models that ONNX Runtime does not load: of newer versions, as onnx writes them, and of rare types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from kiln.arrays import Array
from kiln.errors import KilnError
from kiln.golden.reference import open_reference
from onnx import TensorProto, helper

X = np.array([[-3, -0.5, 2, 7]], "f4")


def _saved(path: Path, node: onnx.NodeProto, **weights: Array) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, None)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    stored = [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()]
    model = helper.make_model(helper.make_graph([node], "g", [x], [y], stored))
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return model


@pytest.mark.parametrize("op, options, want, name", [
    ("Mul", {}, X * [2, -3, 4, 5], "onnxruntime"),
    ("Mod", {}, np.mod(X, [2, -3, 4, 5]), "onnx"),  # ONNX Runtime fails when it runs
    ("Mod", {"fmod": 1}, np.fmod(X, [2, -3, 4, 5]), "onnxruntime"),
])  # fmt: skip
def test_newest_versions(op: str, options: dict[str, Any], want: Array, name: str, tmp_path: Path) -> None:
    node = helper.make_node(op, ["x", "w"], ["y"], **options)
    _saved(tmp_path / "m.onnx", node, w=np.array([2, -3, 4, 5], "f4"))
    reference = open_reference(tmp_path / "m.onnx")
    [got] = reference.run([X])
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert reference.about["name"] == name


def test_operators_that_onnx_runtime_lacks(tmp_path: Path) -> None:
    _saved(tmp_path / "m.onnx", helper.make_node("SpaceToDepth", ["x"], ["y"], blocksize=2, mode="CRD"))
    reference = open_reference(tmp_path / "m.onnx")
    [got] = reference.run([X.reshape(1, 1, 2, 2)])
    assert got.ravel().tolist() == X.ravel().tolist() and reference.about["name"] == "onnx"


def test_types_that_onnx_runtime_lacks(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (int64[1,2] x, int64[2,2] w, int64[2] b) => (int64[1,2] y) { y = Gemm(x, w, b) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    reference = open_reference(tmp_path / "m.onnx")
    x, w, b = np.array([[1, 2]]), np.array([[3, 4], [5, 1 << 40]]), np.array([7, 8])
    assert reference.run([x, w, b])[0].tolist() == (x @ w + b).tolist()
    assert reference.about["name"] == "onnx"


def test_types_that_onnx_runtime_lacks_when_it_runs(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 19]>
        g (uint8[1,1,1,4] x) => (uint8[1,1,1,8] y) <float[4] s = {1, 1, 1, 2}>
        { y = Resize<mode = "cubic">(x, , s) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    reference = open_reference(tmp_path / "m.onnx")
    [got] = reference.run([np.uint8([[[[8, 8, 8, 8]]]])])
    assert got.ravel().tolist() == [8] * 8 and reference.about["name"] == "onnx"


def test_integers_between_pixels(tmp_path: Path) -> None:
    """Of integers ONNX's own evaluator computes zeros."""
    text = """<ir_version: 9, opset_import: ["" : 20]>
        g (uint8[1,1,1,2] x, float[1,1,1,2] t) => (uint8[1,1,1,1] y) { y = GridSample(x, t) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    [got] = open_reference(tmp_path / "m.onnx").run(
        [np.uint8([[[[200, 101]]]]), np.zeros((1, 1, 1, 2), "f4")]
    )
    assert got.ravel().tolist() == [150]


def test_what_neither_can_run_is_told_in_the_words_of_onnx_runtime(tmp_path: Path) -> None:
    _saved(tmp_path / "m.onnx", helper.make_node("SwiGLU", ["x"], ["y"]))
    reference = open_reference(tmp_path / "m.onnx")
    with pytest.raises(KilnError, match=r"onnxruntime, cannot run it: .*SwiGLU"):
        reference.run([X])


def test_onnx_runtime_still_refuses_the_newest_format(tmp_path: Path) -> None:
    """If this fails, `_FORMAT` and `_OPERATORS` in frontend/onnx/plain_session.py can be raised, or go."""
    model = _saved(tmp_path / "m.onnx", helper.make_node("Relu", ["x"], ["y"]))
    for versions in ({"ir_version": 14, "opset": 26}, {"ir_version": 13, "opset": 27}):
        model.ir_version, model.opset_import[0].version = versions["ir_version"], versions["opset"]
        with pytest.raises(Exception, match=r"IR version|Opset 27"):
            onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
