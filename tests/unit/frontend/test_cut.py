"""Parts of an ONNX graph: inputs bound to constants, outputs renamed or dropped, cuts at inner tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from kiln.errors import KilnError
from kiln.frontend.onnx.cut import cut
from kiln.frontend.onnx.model import read
from onnx import parser
from symbolic import imported, runner

NETWORK = """<ir_version: 9, opset_import: ["" : 18]>
net (float[2, 4] x, int64 rate, float[2, 4] side) => (float[2, 4] y, float[2, 2] left, bool b)
    <float[4] w = {1, 2, 3, 4}, int64 wanted = {16}> {
  b = Equal(rate, wanted)
  h = If(b) <then_branch = t () => (float[2, 4] t_out) { t_out = Mul(x, w) },
             else_branch = e () => (float[2, 4] e_out) { e_out = Add(x, side) }>
  r = Relu(h)
  y = Sqrt(r)
  left, right = Split<axis=1, num_outputs=2>(r)
}"""
X = np.random.default_rng(0).uniform(0, 1, (2, 4)).astype("f4")


def part(path: Path, **wanted: Any) -> onnx.ModelProto:
    onnx.save(parser.parse_model(NETWORK), path)
    cut_model = cut(path, read(path), wanted)
    onnx.checker.check_model(cut_model)
    return cut_model


def names(model: onnx.ModelProto) -> tuple[list[str], list[str]]:
    return [value.name for value in model.graph.input], [value.name for value in model.graph.output]


def run(model: onnx.ModelProto, **feeds: Any) -> list[Any]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def test_an_input_is_bound_and_outputs_are_dropped(tmp_path: Path) -> None:
    cut_model = part(tmp_path / "net.onnx", constants={"rate": 16}, outputs={"root": "y"})
    assert names(cut_model) == (["x", "side"], ["root"])
    np.testing.assert_allclose(run(cut_model, x=X, side=X)[0], np.sqrt(X * [1, 2, 3, 4]), rtol=1e-6)
    assert not {"Split"} & {node.op_type for node in cut_model.graph.node}


def test_a_cut_at_inner_tensors(tmp_path: Path) -> None:
    cut_model = part(tmp_path / "net.onnx", inputs=["r"], outputs={"y": "y", "second": "right"})
    assert names(cut_model) == (["r"], ["y", "second"])
    got = run(cut_model, r=X)
    np.testing.assert_allclose(got[0], np.sqrt(X), rtol=1e-6)
    np.testing.assert_array_equal(got[1], X[:, 2:])


def test_a_number_fills_an_input(tmp_path: Path) -> None:
    cut_model = part(tmp_path / "net.onnx", constants={"side": 0.5, "rate": 8}, outputs={"y": "y"})
    assert names(cut_model) == (["x"], ["y"])
    np.testing.assert_allclose(run(cut_model, x=X)[0], np.sqrt(X + np.float32(0.5)), rtol=1e-6)


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ({"constants": {"rat": 1}}, "cut.constants: the model has no input 'rat'; did you mean 'rate'?"),
        ({"constants": {"rate": 1.5}}, "cut.constants: rate: 1.5 is not a value of type int64"),
        ({"constants": {"rate": "a"}}, "cut.constants: rate: a is not a value of type int64"),
        ({"constants": {"side": [1, 2]}}, "cut.constants: side: shape [2], allowed: [2, 4]"),
        ({"outputs": {"y": "z"}}, "cut.outputs: no tensor is called 'z'; known: b, h, left"),
        ({"inputs": ["q"]}, "cut.inputs: no tensor is called 'q'; known: b, h, left"),
        ({"inputs": ["x"]}, "cut.inputs: 'x' is an input or a weight already; leave it out"),
        ({"outputs": {"h": "y"}}, "cut.outputs: 'h' is another tensor of the graph; choose another name"),
        (
            {"inputs": ["left"], "outputs": {"a": "left", "c": "right"}},
            "cut.inputs: 'left' and another result of the same node are needed",
        ),
    ],
)
def test_what_is_refused(tmp_path: Path, wanted: dict[str, Any], told: str) -> None:
    with pytest.raises(KilnError) as error:
        part(tmp_path / "net.onnx", **wanted)
    assert told in str(error.value)


def test_a_part_without_outputs_that_are_no_tensors(tmp_path: Path) -> None:
    """The maps of an exported classifier are left out, and the tensor that they are made of is a result."""
    text = NETWORK.replace("float[2, 2] left", "seq(map(int64, float)) left").replace(
        "left, right = Split<axis=1, num_outputs=2>(r)",
        "left = ai.onnx.ml.ZipMap<classlabels_int64s=[1, 2, 3, 4]>(r)",
    )
    text = text.replace('["" : 18]', '["" : 18, "ai.onnx.ml" : 1]')
    onnx.save(parser.parse_model(text), tmp_path / "net.onnx")
    cut_model = cut(tmp_path / "net.onnx", read(tmp_path / "net.onnx", ports=False), {"outputs": {"s": "r"}})
    cut_model.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(cut_model, tmp_path / "part.onnx")
    assert names(read(tmp_path / "part.onnx"))[1] == ["s"]
    with pytest.raises(KilnError, match="output 'left' is of type sequence"):
        read(tmp_path / "net.onnx")


SEQUENCES = """<ir_version: 9, opset_import: ["" : 18]>
net (seq(float[2]) x, optional(float[2]) o, optional(seq(float[2])) q, float[2] z)
    => (seq(float[2]) y, bool b)
    <int64 first = {0}> {
  h = OptionalHasElement(o)
  b = Not(h)
  g = OptionalGetElement(q)
  e = SequenceAt(g, first)
  w = Add(z, e)
  y = SequenceInsert(x, w, first)
}"""


def elements(path: Path, **counts: int) -> onnx.ModelProto:
    onnx.save(parser.parse_model(SEQUENCES), path)
    cut_model = cut(path, read(path, ports=False), {"elements": counts})
    onnx.checker.check_model(cut_model, full_check=True)
    return cut_model


def test_sequences_and_optional_values_become_tensors(tmp_path: Path) -> None:
    cut_model = elements(tmp_path / "net.onnx", x=2, o=0, q=1, y=3)
    assert names(cut_model) == (["x_0", "x_1", "q_0", "z"], ["y_0", "y_1", "y_2", "b"])
    a, b, c, d = np.float32([[1, 2], [3, 4], [5, 6], [7, 8]])
    feeds = {"x_0": a, "x_1": b, "q_0": c, "z": d}
    outputs = run(cut_model, **feeds)
    np.testing.assert_array_equal(np.stack(outputs[:3]), [c + d, a, b])
    assert outputs[3]
    onnx.save(cut_model, tmp_path / "made.onnx")
    for ours, theirs in zip(
        runner(imported(tmp_path / "made.onnx", {})[0])([a, b, c, d], {}), outputs, strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    present = names(elements(tmp_path / "net.onnx", x=1, o=1, q=1, y=2))[0]
    assert present == ["x_0", "o_0", "q_0", "z"]


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ({"u": 1}, "cut.elements: no input or output is called 'u'; known: x, o, q, z, y, b"),
        ({"z": 1}, "cut.elements: 'z' is a tensor; leave it out"),
        ({"x": -1}, "cut.elements: x: -1, allowed: 0..1024"),
        ({"o": 2}, "cut.elements: o: 2, allowed: 1, or 0 if it is absent"),
    ],
)
def test_numbers_of_elements_that_do_not_fit(counts: dict[str, int], told: str, tmp_path: Path) -> None:
    with pytest.raises(KilnError) as error:
        elements(tmp_path / "net.onnx", **counts)
    assert told in str(error.value)


def test_a_sequence_without_a_number_is_refused_with_the_key(tmp_path: Path) -> None:
    onnx.save(parser.parse_model(SEQUENCES), tmp_path / "net.onnx")
    with pytest.raises(KilnError, match=r"'x' is of type sequence, .* cut: \{elements: \{x: N\}\}"):
        read(tmp_path / "net.onnx")


def test_inner_tensors_keep_the_sizes_that_the_file_names(tmp_path: Path) -> None:
    """ONNX's own inference gives the image of a convolution a new name for each dynamic size."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    net (float[n,1,height,8] x) => (float[n,2,height,8] y)
    <float[2,1,1,1] w = {1, 2}, float[n,2,height,8] c> { c = Conv(x, w)  y = Relu(c) }"""
    part = cut(tmp_path / "net.onnx", onnx.parser.parse_model(text), {"inputs": ["c"]})
    (entering,) = part.graph.input
    assert [dim.dim_param or dim.dim_value for dim in entering.type.tensor_type.shape.dim] == [
        "n", 2, "height", 8,
    ]  # fmt: skip
